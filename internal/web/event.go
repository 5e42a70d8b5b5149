package web

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"paymentd/internal/payment"
)

// Event is what one request was about; it becomes exactly one log line when the request ends. Handlers fill
// the exported fields. It holds no secret, and belongs to the goroutine that serves the request.
type Event struct {
	// ArrivedAt is when the headers had been read: ANSWER_WITHIN counts from there.
	ArrivedAt time.Time
	// RequestID comes from X-Request-Id if that is sane, else it is new.
	RequestID string
	// Key is who calls; zero on routes without keys.
	Key     Key
	OrderID string
	Result  payment.Result
	// Attempts counts the tries at the gateway; Gateway and DB are the time spent there.
	Attempts    int
	Gateway, DB time.Duration
	// TraceID is Toss's name for its last word; Breaker the state of the gateway's breaker at the end.
	TraceID, Breaker string
	// Action names what an operator did, for the audit, or what became of a webhook; empty otherwise.
	Action string

	code       payment.Code
	err        error
	stack      string
	clientGone bool
}

type eventKey struct{}

var saneRequestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// EventOf returns the event of the request; outside a Door it is a new one that nobody logs.
func EventOf(ctx context.Context) *Event {
	if e, ok := ctx.Value(eventKey{}).(*Event); ok {
		return e
	}
	return &Event{ArrivedAt: time.Now()}
}

// ArrivedAt is when the headers of the request had been read.
func ArrivedAt(r *http.Request) time.Time { return EventOf(r.Context()).ArrivedAt }

func requestID(r *http.Request) string {
	if given := r.Header.Values("X-Request-Id"); len(given) == 1 && saneRequestID.MatchString(given[0]) {
		return given[0]
	}
	return rand.Text()
}

// Note gives the log a cause that the answer does not show.
func (e *Event) Note(err error) { e.err = err }

// panicked records a fault of ours. The value stays out of the log: it may hold a paymentKey.
func (e *Event) panicked(value any, stack []byte) {
	e.err = fmt.Errorf("panic of type %T", value)
	e.stack = string(stack)
}

// maxAttrs is how many attributes the line of a request can have.
const maxAttrs = 18

func (e *Event) attrs(attrs []slog.Attr, took time.Duration) []slog.Attr {
	attrs = append(attrs, slog.String("request_id", e.RequestID))
	add := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	add("code", string(e.code))
	add("key", e.Key.Name)
	add("order_id", e.OrderID)
	add("result", string(e.Result))
	add("action", e.Action)
	if e.Result != "" {
		attrs = append(attrs,
			slog.Int("attempts", e.Attempts),
			slog.Float64("gateway_ms", Milliseconds(e.Gateway)),
			slog.Float64("db_ms", Milliseconds(e.DB)),
		)
	}
	add("breaker", e.Breaker)
	add("trace_id", e.TraceID)
	attrs = append(attrs, slog.Float64("own_ms", Milliseconds(e.Own(took))))
	if e.clientGone {
		attrs = append(attrs, slog.Bool("client_gone", true))
	}
	if e.err != nil {
		attrs = append(attrs, slog.String("error", e.err.Error()))
	}
	add("stack", e.stack)
	return attrs
}

// Own is the part of took that was spent neither at the gateway nor in the database, never negative: detached
// work may have taken longer than its caller waited.
func (e *Event) Own(took time.Duration) time.Duration { return max(0, took-e.Gateway-e.DB) }

// Milliseconds is d with microsecond precision, as logs and Server-Timing show it.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
