package web

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"paymentd/internal/payment"
)

// internalDetail is all that a caller learns of a fault of ours.
const internalDetail = "An unexpected fault. It says nothing about the money: send the same request again, or read the order."

// kind is what is fixed about a code.
type kind struct {
	status int
	title  string
}

// kinds is the one table from codes to statuses and titles (docs/errors.md).
var kinds = map[payment.Code]kind{
	payment.CodeInvalidRequest:        {http.StatusBadRequest, "The request is not valid"},
	payment.CodeUnauthorized:          {http.StatusUnauthorized, "A valid key is required"},
	payment.CodeDeclined:              {http.StatusPaymentRequired, "The payment was declined"},
	payment.CodeForbidden:             {http.StatusForbidden, "The key may not do this"},
	payment.CodeNotFound:              {http.StatusNotFound, "Not found"},
	payment.CodeMethodNotAllowed:      {http.StatusMethodNotAllowed, "Method not allowed"},
	payment.CodeOrderConflict:         {http.StatusConflict, "The order or payment key is in use"},
	payment.CodePaymentCanceled:       {http.StatusConflict, "The payment was canceled"},
	payment.CodeInProgress:            {http.StatusConflict, "The payment is being worked on"},
	payment.CodeCancelInProgress:      {http.StatusConflict, "An earlier cancel is unfinished"},
	payment.CodeNotCancelable:         {http.StatusConflict, "The payment cannot be canceled"},
	payment.CodeRefundAccountRequired: {http.StatusConflict, "A refund account is required"},
	payment.CodeIdempotencyKeyReused:  {http.StatusConflict, "The idempotency key belongs to another request"},
	payment.CodeExpired:               {http.StatusGone, "The payment expired"},
	payment.CodeTooLarge:              {http.StatusRequestEntityTooLarge, "The body is too large"},
	payment.CodeUnsupportedMediaType:  {http.StatusUnsupportedMediaType, "The body must be JSON"},
	payment.CodeMemberRateLimited:     {http.StatusTooManyRequests, "The member confirms too often"},
	payment.CodeRateLimited:           {http.StatusTooManyRequests, "Too many requests"},
	payment.CodeInternal:              {http.StatusInternalServerError, "Internal fault"},
	payment.CodeGatewayMisconfigured:  {http.StatusBadGateway, "The gateway does not accept our set-up"},
	payment.CodePGUnavailable:         {http.StatusServiceUnavailable, "The gateway cannot be reached"},
	payment.CodeBusy:                  {http.StatusServiceUnavailable, "Our own limit is reached"},
	payment.CodeDBUnavailable:         {http.StatusServiceUnavailable, "The database cannot be reached"},
	payment.CodeDBFailed:              {http.StatusServiceUnavailable, "The approval could not be kept and was given back"},
}

// StatusOf is the HTTP status of a code; 500 for one outside the closed set.
func StatusOf(code payment.Code) int {
	if k, ok := kinds[code]; ok {
		return k.status
	}
	return http.StatusInternalServerError
}

// Problem is an error as the doors answer it (RFC 9457).
type Problem struct {
	Type     string       `json:"type"`
	Title    string       `json:"title"`
	Status   int          `json:"status"`
	Detail   string       `json:"detail"`
	Instance string       `json:"instance"`
	Code     payment.Code `json:"code"`
	// RetryAfter is in seconds; it stands on 429 and 503 except db_failed, as the header does.
	RetryAfter     int                  `json:"retryAfter,omitempty"`
	Earlier        payment.Earlier      `json:"earlier,omitempty"`
	Errors         []payment.FieldError `json:"errors,omitempty"`
	GatewayCode    string               `json:"gatewayCode,omitempty"`
	GatewayMessage string               `json:"gatewayMessage,omitempty"`
}

// ProblemOf shows an error to a caller: the public part of a *payment.Error, or a fixed text. Causes stay inside.
func ProblemOf(err error, requestID string) Problem {
	e, ok := errors.AsType[*payment.Error](err)
	if !ok {
		e = &payment.Error{Code: payment.CodeInternal}
	}
	k, known := kinds[e.Code]
	if !known || e.Code == payment.CodeInternal {
		e = &payment.Error{Code: payment.CodeInternal, Public: internalDetail}
		k = kinds[payment.CodeInternal]
	}
	p := Problem{
		Type:     "urn:paymentd:problem:" + string(e.Code),
		Title:    k.title,
		Status:   k.status,
		Detail:   e.Public,
		Instance: requestID,
		Code:     e.Code,
		Earlier:  e.Earlier,
		Errors:   e.Fields,
	}
	if p.Detail == "" {
		p.Detail = k.title + "."
	}
	if retryable(e.Code, k.status) {
		p.RetryAfter = Seconds(e.RetryAfter)
	}
	if e.Code == payment.CodeDeclined || e.Code == payment.CodeNotCancelable {
		p.GatewayCode, p.GatewayMessage = e.GatewayCode, e.GatewayMessage
	}
	return p
}

func retryable(code payment.Code, status int) bool {
	return status == http.StatusTooManyRequests || (status == http.StatusServiceUnavailable && code != payment.CodeDBFailed)
}

// Seconds is a wait as Retry-After says it: whole seconds, rounded up, at least 1.
func Seconds(wait time.Duration) int {
	return max(1, int((wait+time.Second-1)/time.Second))
}

// WriteJSON answers with a JSON body that caches must not keep.
func WriteJSON(w http.ResponseWriter, status int, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	write(w, status, "application/json", text)
	return nil
}

func writeProblem(w http.ResponseWriter, p Problem) {
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	// A Problem has no member that Marshal refuses.
	text, _ := json.Marshal(p)
	write(w, p.Status, "application/problem+json", text)
}

func write(w http.ResponseWriter, status int, mediaType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// codeOf is the code that an error is answered with.
func codeOf(err error) payment.Code { return ProblemOf(err, "").Code }
