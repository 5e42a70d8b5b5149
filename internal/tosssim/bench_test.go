package tosssim_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"paymentd/internal/tosssim"
)

// BenchmarkConfirm is the simulator's own cost per confirm, net/http and sockets left out.
func BenchmarkConfirm(b *testing.B) {
	h := tosssim.New(tosssim.Options{}).Handler()
	var n atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/payments/confirm", nil)
		if err != nil {
			b.Fatal(err)
		}
		w := &discard{header: http.Header{}}
		for pb.Next() {
			i := n.Add(1)
			r.Header = http.Header{"Authorization": {"Basic dGVzdF9zazo="}, "Idempotency-Key": {fmt.Sprintf("test_b_%d:1", i)}}
			r.Body = io.NopCloser(strings.NewReader(fmt.Sprintf(`{"paymentKey":"test_b_%d","orderId":"order-%d","amount":15000}`, i, i)))
			if h.ServeHTTP(w, r); w.status != http.StatusOK {
				b.Fatal(w.status)
			}
		}
	})
}

type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }
