package pg

import (
	"maps"

	"paymentd/internal/payment"
)

// codes says what may be concluded from Toss's error codes, per operation: by code and never by status, because
// many declines are 403 and a 400 may say "temporary". A code that is not here leaves the outcome unknown.
// Toss ships new codes without notice; testdata/codes.json lists those it documents.
type codes map[string]payment.Kind

// list maps all names to one kind.
func list(kind payment.Kind, names ...string) codes {
	c := codes{}
	for _, name := range names {
		c[name] = kind
	}
	return c
}

func join(parts ...codes) codes {
	all := codes{}
	for _, part := range parts {
		maps.Copy(all, part)
	}
	return all
}

// merchantCodes are answers to any operation by which Toss does not accept us.
func merchantCodes() codes {
	return list(payment.KindMisconfigured, "UNAUTHORIZED_KEY", "INVALID_API_KEY", "INCORRECT_BASIC_AUTH_FORMAT")
}

func confirmCodes() codes {
	return join(merchantCodes(),
		list(payment.KindMisconfigured,
			"NOT_FOUND_TERMINAL_ID", "INVALID_UNREGISTERED_SUBMALL", "NOT_REGISTERED_BUSINESS"),
		list(payment.KindDeclined,
			"EXCEED_MAX_CARD_INSTALLMENT_PLAN", "NOT_ALLOWED_POINT_USE", "INVALID_REJECT_CARD", "BELOW_MINIMUM_AMOUNT",
			"INVALID_CARD_EXPIRATION", "INVALID_STOPPED_CARD", "EXCEED_MAX_DAILY_PAYMENT_COUNT",
			"NOT_SUPPORTED_INSTALLMENT_PLAN_CARD_OR_MERCHANT", "INVALID_CARD_INSTALLMENT_PLAN",
			"NOT_SUPPORTED_MONTHLY_INSTALLMENT_PLAN", "EXCEED_MAX_PAYMENT_AMOUNT", "INVALID_AUTHORIZE_AUTH",
			"INVALID_CARD_LOST_OR_STOLEN", "RESTRICTED_TRANSFER_ACCOUNT", "INVALID_CARD_NUMBER",
			"EXCEED_MAX_ONE_DAY_WITHDRAW_AMOUNT", "EXCEED_MAX_ONE_TIME_WITHDRAW_AMOUNT", "EXCEED_MAX_AMOUNT",
			"INVALID_ACCOUNT_INFO_RE_REGISTER", "NOT_AVAILABLE_PAYMENT", "EXCEED_MAX_MONTHLY_PAYMENT_AMOUNT",
			"REJECT_ACCOUNT_PAYMENT", "REJECT_CARD_PAYMENT", "REJECT_CARD_COMPANY", "REJECT_TOSSPAY_INVALID_ACCOUNT",
			"EXCEED_MAX_AUTH_COUNT", "EXCEED_MAX_ONE_DAY_AMOUNT", "NOT_AVAILABLE_BANK", "INVALID_PASSWORD", "FDS_ERROR"),
		// Our own words may be wrong, or a payment of that name is there already: a lookup shows no approval first.
		list(payment.KindRejected,
			"INVALID_REQUEST", "FORBIDDEN_REQUEST", "NOT_FOUND_PAYMENT", "INVALID_IDEMPOTENCY_KEY"),
		list(payment.KindSessionGone, "NOT_FOUND_PAYMENT_SESSION"),
		// UNAPPROVED_ORDER_ID has no explanation; CARD_PROCESSING_ERROR may follow an approval by the card company.
		list(payment.KindAmbiguous,
			"ALREADY_PROCESSED_PAYMENT", "PROVIDER_ERROR", "CARD_PROCESSING_ERROR", "UNAPPROVED_ORDER_ID", "DUPLICATED_ORDER_ID"),
		list(payment.KindProcessing, "ALREADY_PROCESSING_REQUEST"),
		list(payment.KindKeyBusy, "IDEMPOTENT_REQUEST_PROCESSING"),
		list(payment.KindFault,
			"FAILED_PAYMENT_INTERNAL_SYSTEM_PROCESSING", "FAILED_INTERNAL_SYSTEM_PROCESSING", "UNKNOWN_PAYMENT_ERROR", "COMMON_ERROR"),
	)
}

// lookupCodes: a failed lookup never proves anything about the payment.
func lookupCodes() codes {
	return join(merchantCodes(),
		list(payment.KindNotFound, "NOT_FOUND_PAYMENT", "NOT_FOUND"),
		list(payment.KindThrottled, "FORBIDDEN_CONSECUTIVE_REQUEST"),
		list(payment.KindFault,
			"NOT_SUPPORTED_MONTHLY_INSTALLMENT_PLAN_BELOW_AMOUNT", "FAILED_PAYMENT_INTERNAL_SYSTEM_PROCESSING"),
	)
}

func cancelCodes() codes {
	return join(merchantCodes(),
		// NOT_AVAILABLE_BANK to a cancel is the bank's closing time: the next key, later.
		list(payment.KindAmbiguous,
			"ALREADY_CANCELED_PAYMENT", "ALREADY_REFUND_PAYMENT", "NOT_MATCHES_REFUNDABLE_AMOUNT", "PROVIDER_ERROR", "NOT_AVAILABLE_BANK"),
		list(payment.KindDeclined,
			"INVALID_REFUND_ACCOUNT_INFO", "INVALID_REFUND_ACCOUNT_NUMBER", "INVALID_BANK",
			"EXCEED_CANCEL_AMOUNT_DISCOUNT_AMOUNT", "REFUND_REJECTED", "FORBIDDEN_BANK_REFUND_REQUEST",
			"NOT_CANCELABLE_AMOUNT", "NOT_CANCELABLE_PAYMENT", "NOT_CANCELABLE_PAYMENT_FOR_DORMANT_USER",
			"EXCEED_MAX_REFUND_DUE", "EXCEED_CANCEL_LIMIT", "NOT_ALLOWED_PARTIAL_REFUND",
			"NOT_ALLOWED_PARTIAL_REFUND_WAITING_DEPOSIT"),
		list(payment.KindRejected,
			"INVALID_REQUEST", "FORBIDDEN_REQUEST", "NOT_FOUND_PAYMENT", "INVALID_IDEMPOTENCY_KEY"),
		list(payment.KindKeyBusy, "IDEMPOTENT_REQUEST_PROCESSING"),
		list(payment.KindThrottled, "FORBIDDEN_CONSECUTIVE_REQUEST"),
		list(payment.KindFault,
			"FAILED_INTERNAL_SYSTEM_PROCESSING", "FAILED_PAYMENT_INTERNAL_SYSTEM_PROCESSING", "FAILED_REFUND_PROCESS",
			"FAILED_METHOD_HANDLING_CANCEL", "COMMON_ERROR", "FAILED_PARTIAL_REFUND"),
	)
}
