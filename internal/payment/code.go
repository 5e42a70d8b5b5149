package payment

import "time"

// Code is the closed set of problem codes of the public door (docs/errors.md).
type Code string

// The codes, in the order of their HTTP status.
const (
	CodeInvalidRequest        Code = "invalid_request"
	CodeUnauthorized          Code = "unauthorized"
	CodeDeclined              Code = "declined"
	CodeForbidden             Code = "forbidden"
	CodeNotFound              Code = "not_found"
	CodeMethodNotAllowed      Code = "method_not_allowed"
	CodeOrderConflict         Code = "order_conflict"
	CodePaymentCanceled       Code = "payment_canceled"
	CodeInProgress            Code = "in_progress"
	CodeCancelInProgress      Code = "cancel_in_progress"
	CodeNotCancelable         Code = "not_cancelable"
	CodeRefundAccountRequired Code = "refund_account_required"
	CodeIdempotencyKeyReused  Code = "idempotency_key_reused"
	CodeExpired               Code = "expired"
	CodeTooLarge              Code = "too_large"
	CodeUnsupportedMediaType  Code = "unsupported_media_type"
	CodeMemberRateLimited     Code = "member_rate_limited"
	CodeRateLimited           Code = "rate_limited"
	CodeInternal              Code = "internal"
	CodeGatewayMisconfigured  Code = "gateway_misconfigured"
	CodePGUnavailable         Code = "pg_unavailable"
	CodeBusy                  Code = "busy"
	CodeDBUnavailable         Code = "db_unavailable"
	CodeDBFailed              Code = "db_failed"
)

// Codes lists every code.
func Codes() []Code {
	return []Code{
		CodeInvalidRequest, CodeUnauthorized, CodeDeclined, CodeForbidden, CodeNotFound, CodeMethodNotAllowed,
		CodeOrderConflict, CodePaymentCanceled, CodeInProgress, CodeCancelInProgress, CodeNotCancelable,
		CodeRefundAccountRequired, CodeIdempotencyKeyReused, CodeExpired, CodeTooLarge, CodeUnsupportedMediaType,
		CodeMemberRateLimited, CodeRateLimited, CodeInternal, CodeGatewayMisconfigured,
		CodePGUnavailable, CodeBusy, CodeDBUnavailable, CodeDBFailed,
	}
}

// FieldError names one field of a refused request and why; it never repeats the value.
type FieldError struct {
	Field  string `json:"field"`
	Reason string `json:"reason"`
}

// Earlier says what is known of calls before this one that may have charged the same payment.
type Earlier string

// The two values of Earlier; empty means that the answer itself tells.
const (
	EarlierNone    Earlier = "none"
	EarlierUnknown Earlier = "unknown"
)

// Error is the one error of the use cases: Code chooses the status, Public is always safe to show,
// Err is for the log alone.
type Error struct {
	Code       Code
	Public     string
	RetryAfter time.Duration
	Earlier    Earlier
	Fields     []FieldError
	// GatewayCode and GatewayMessage are Toss's own words, on declined and not_cancelable only.
	GatewayCode    string
	GatewayMessage string
	Err            error
}

// Error tells the code, the public text and the cause.
func (e *Error) Error() string {
	text := string(e.Code)
	if e.Public != "" {
		text += ": " + e.Public
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Result is the label of paymentd_confirm_total: every answer to a confirm has exactly one.
type Result string

// The results of a confirm.
const (
	ResultApproved           Result = "approved"
	ResultReplayed           Result = "replayed"
	ResultAwaitingDeposit    Result = "awaiting_deposit"
	ResultDeclined           Result = "declined"
	ResultExpired            Result = "expired"
	ResultPendingUnknown     Result = "pending_unknown"
	ResultPendingRunning     Result = "pending_running"
	ResultPendingUnavailable Result = "pending_unavailable"
	ResultPGUnavailable      Result = "pg_unavailable"
	ResultBusy               Result = "busy"
	ResultDBUnavailable      Result = "db_unavailable"
	ResultDBFailed           Result = "db_failed"
	ResultOrderConflict      Result = "order_conflict"
	ResultPaymentCanceled    Result = "payment_canceled"
	ResultInvalidRequest     Result = "invalid_request"
	ResultMemberRateLimited  Result = "member_rate_limited"
	ResultMisconfigured      Result = "gateway_misconfigured"
	ResultInternal           Result = "internal"
)

// Results lists every result.
func Results() []Result {
	return []Result{
		ResultApproved, ResultReplayed, ResultAwaitingDeposit, ResultDeclined, ResultExpired, ResultPendingUnknown,
		ResultPendingRunning, ResultPendingUnavailable, ResultPGUnavailable, ResultBusy, ResultDBUnavailable,
		ResultDBFailed, ResultOrderConflict, ResultPaymentCanceled, ResultInvalidRequest, ResultMemberRateLimited,
		ResultMisconfigured, ResultInternal,
	}
}
