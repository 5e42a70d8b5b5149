package payment_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

func TestView(t *testing.T) {
	t.Parallel()
	seoul := time.FixedZone("KST", 9*60*60)
	at := time.Date(2026, 3, 1, 9, 0, 0, 123456000, seoul)
	tests := []struct {
		name string
		have payment.Payment
		want string
	}{
		{
			name: "pending: null where unknown",
			have: payment.Payment{
				OrderID: "order-1", PaymentKey: "key-1", Amount: 50_000_000_000, Currency: payment.KRW,
				Status: payment.Pending, CreatedAt: at, UpdatedAt: at,
				MemberID: "member-7", ReceiptEmail: "someone@example.com", Version: 3,
			},
			want: `{"orderId":"order-1","paymentKey":"key-1","amount":50000000000,"currency":"KRW","status":"PENDING",` +
				`"method":null,"approvedAt":null,"receiptUrl":null,"canceledAmount":0,"virtualAccount":null,"failure":null,` +
				`"createdAt":"2026-03-01T00:00:00.123456Z","updatedAt":"2026-03-01T00:00:00.123456Z"}`,
		},
		{
			name: "paid in dollars, partly refunded",
			have: payment.Payment{
				OrderID: "order-1", PaymentKey: "key-1", Amount: 1050, Currency: "USD", Status: payment.Paid,
				Method: "카드", ApprovedAt: at, ReceiptURL: "https://example.com/r?a=1", CanceledAmount: 5,
				CreatedAt: at, UpdatedAt: at.Truncate(time.Second),
			},
			want: `{"orderId":"order-1","paymentKey":"key-1","amount":10.50,"currency":"USD","status":"PAID",` +
				`"method":"카드","approvedAt":"2026-03-01T00:00:00.123456Z","receiptUrl":"https://example.com/r?a=1",` +
				`"canceledAmount":0.05,"virtualAccount":null,"failure":null,` +
				`"createdAt":"2026-03-01T00:00:00.123456Z","updatedAt":"2026-03-01T00:00:00Z"}`,
		},
		{
			name: "failed virtual account",
			have: payment.Payment{
				OrderID: "order-1", PaymentKey: "key-1", Amount: 1000, Currency: payment.KRW, Status: payment.Failed,
				VirtualAccount: &payment.VirtualAccount{BankCode: "20", AccountNumber: "123", DueDate: at},
				Failure:        &payment.Failure{Code: payment.FailExpired},
			},
			want: `{"orderId":"order-1","paymentKey":"key-1","amount":1000,"currency":"KRW","status":"FAILED",` +
				`"method":null,"approvedAt":null,"receiptUrl":null,"canceledAmount":0,` +
				`"virtualAccount":{"bankCode":"20","accountNumber":"123","customerName":null,"dueDate":"2026-03-01T00:00:00.123456Z"},` +
				`"failure":{"code":"expired","gatewayCode":null,"message":null},"createdAt":null,"updatedAt":null}`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := json.Marshal(payment.View(test.have))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, string(got)); diff != "" {
				t.Errorf("JSON (-want +got):\n%s", diff)
			}
		})
	}
}
