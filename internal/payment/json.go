package payment

import (
	"encoding/json"
	"time"
)

// Public is a payment as the public API and the webhook show it (design note §8, "Payment JSON"): fields in this
// order, null where unknown, amounts as exact JSON numbers, times in RFC 3339 UTC. Embed it to add fields.
type Public struct {
	OrderID        string                `json:"orderId"`
	PaymentKey     string                `json:"paymentKey"`
	Amount         json.Number           `json:"amount"`
	Currency       Currency              `json:"currency"`
	Status         Status                `json:"status"`
	Method         *string               `json:"method"`
	ApprovedAt     *time.Time            `json:"approvedAt"`
	ReceiptURL     *string               `json:"receiptUrl"`
	CanceledAmount json.Number           `json:"canceledAmount"`
	VirtualAccount *PublicVirtualAccount `json:"virtualAccount"`
	Failure        *PublicFailure        `json:"failure"`
	CreatedAt      *time.Time            `json:"createdAt"`
	UpdatedAt      *time.Time            `json:"updatedAt"`
}

// PublicVirtualAccount is a VirtualAccount inside Public.
type PublicVirtualAccount struct {
	BankCode      *string    `json:"bankCode"`
	AccountNumber *string    `json:"accountNumber"`
	CustomerName  *string    `json:"customerName"`
	DueDate       *time.Time `json:"dueDate"`
}

// PublicFailure is a Failure inside Public.
type PublicFailure struct {
	Code        FailureCode `json:"code"`
	GatewayCode *string     `json:"gatewayCode"`
	Message     *string     `json:"message"`
}

// View returns what the outside may see of p: neither memberId nor receiptEmail nor anything internal.
func View(p Payment) Public {
	v := Public{
		OrderID:        p.OrderID,
		PaymentKey:     p.PaymentKey,
		Amount:         json.Number(p.Amount.Text(p.Currency)),
		Currency:       p.Currency,
		Status:         p.Status,
		Method:         known(p.Method),
		ApprovedAt:     knownTime(p.ApprovedAt),
		ReceiptURL:     known(p.ReceiptURL),
		CanceledAmount: json.Number(p.CanceledAmount.Text(p.Currency)),
		CreatedAt:      knownTime(p.CreatedAt),
		UpdatedAt:      knownTime(p.UpdatedAt),
	}
	if a := p.VirtualAccount; a != nil {
		v.VirtualAccount = &PublicVirtualAccount{
			BankCode:      known(a.BankCode),
			AccountNumber: known(a.AccountNumber),
			CustomerName:  known(a.CustomerName),
			DueDate:       knownTime(a.DueDate),
		}
	}
	if f := p.Failure; f != nil {
		v.Failure = &PublicFailure{Code: f.Code, GatewayCode: known(f.GatewayCode), Message: known(f.Message)}
	}
	return v
}

func known(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func knownTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
