package store

import (
	"fmt"
	"testing"

	"paymentd/internal/devdb"
	"paymentd/internal/payment"
)

// BenchmarkReserveSettle is the hot path: two statements, two round trips.
func BenchmarkReserveSettle(b *testing.B) {
	for _, by := range []payment.Actor{payment.ByConfirm, payment.ByRecovery} {
		b.Run(string(by), func(b *testing.B) {
			s, err := Open(b.Context(), options(devdb.New(b, migration()).DSN))
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			for i := 0; b.Loop(); i++ {
				p, e, err := s.Reserve(b.Context(), order(fmt.Sprint(i)), lease)
				if e != payment.Applied {
					b.Fatal(e, err)
				}
				if _, e, err := s.Settle(b.Context(), settlement(p, payment.Paid, by)); e != payment.Applied {
					b.Fatal(e, err)
				}
			}
		})
	}
}
