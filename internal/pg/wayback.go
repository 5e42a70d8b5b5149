package pg

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// forever is the wait of work that nobody waits for: its context ends it.
const forever = time.Duration(1<<63 - 1)

// Lookup reads a payment by its key. A payment in the answer has that key; nothing else of it is compared. With
// OneTry and Hinted a lookup without a token is refused by the limiter at once.
func (c *Client) Lookup(ctx context.Context, paymentKey string, tries approval.Tries) payment.Answer {
	q := request{
		op: opLookup, method: http.MethodGet, path: paymentPath(paymentKey),
		timeout: c.options.LookupTimeout, want: expectation{paymentKey: paymentKey},
	}
	return c.patiently(ctx, q, patience{tries: tries}, payment.KindNotConnected, payment.KindReset, payment.KindTimeout,
		payment.KindFault, payment.KindThrottled)
}

// LookupByOrder reads a payment of an order whose key is not known. Which of several attempts Toss shows is not
// documented, so the key of the answer must be compared before anything follows from it.
func (c *Client) LookupByOrder(ctx context.Context, orderID string, tries approval.Tries) payment.Answer {
	q := request{
		op: opLookup, method: http.MethodGet, path: "v1/payments/orders/" + url.PathEscape(orderID), orderID: orderID,
		timeout: c.options.LookupTimeout, want: expectation{orderID: orderID},
	}
	return c.patiently(ctx, q, patience{tries: tries}, payment.KindNotConnected, payment.KindReset, payment.KindTimeout,
		payment.KindFault, payment.KindThrottled)
}

// Cancel sends one cancel, again only while nothing was heard under its key. The answer is the worst for money,
// not the last: what follows a try that may have arrived proves nothing about it.
func (c *Client) Cancel(ctx context.Context, call approval.CancelCall) payment.Answer {
	q := request{
		op: opCancel, method: http.MethodPost, path: paymentPath(call.PaymentKey) + "/cancel", key: call.Key, body: cancelBody(call),
		timeout: c.options.CancelTimeout, want: expectation{paymentKey: call.PaymentKey},
	}
	return c.patiently(ctx, q, patience{call.Tries, call.Stop}, payment.KindNotConnected, payment.KindReset, payment.KindTimeout, payment.KindKeyBusy)
}

// patience says how often something is tried; stop, if not nil, ends the waits between tries when it is closed.
type patience struct {
	tries approval.Tries
	stop  <-chan struct{}
}

// waiting is ctx for waits: it also ends with stop, which a try under way does not.
func (p patience) waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	waits, cancel := context.WithCancel(ctx)
	if p.stop != nil {
		go func() {
			select {
			case <-p.stop:
				cancel()
			case <-waits.Done():
			}
		}()
	}
	return waits, cancel
}

// patiently is the way of lookups and cancels: a budget of their own, no breaker, and with Patient three tries
// with 1 s and 2 s between them while the answer is one of again. Webhooks come from anybody: those of known payments
// leave half of the lookups to recovery and confirms, those of unknown ones spend none of them.
func (c *Client) patiently(ctx context.Context, q request, p patience, again ...payment.Kind) payment.Answer {
	budget, wait, pauses := c.lookups, time.Duration(0), []time.Duration{}
	if q.op == opCancel {
		budget = c.cancels
	}
	switch {
	case p.tries == approval.Patient:
		wait, pauses = forever, []time.Duration{time.Second, 2 * time.Second}
	case p.tries == approval.Stranger && q.op == opLookup:
		budget, wait = c.strangers, forever
	case p.tries == approval.Hinted && q.op == opLookup:
		if refused := budget.spare(); refused != nil {
			return refused.answer
		}
		budget = nil
	}
	waits, end := p.waiting(ctx)
	defer end()
	var worst payment.Answer
	for i := 0; ; i++ {
		a := c.within(ctx, q, budget.take(waits, wait))
		worst = worseOf(q.op, worst, a)
		if i >= len(pauses) || !slices.Contains(again, a.Kind) || !pause(waits, pauses[i]) {
			return worst
		}
	}
}

// within sends one try if its budget did not refuse.
func (c *Client) within(ctx context.Context, q request, refused *ended) payment.Answer {
	if refused != nil {
		return refused.answer
	}
	if err := ctx.Err(); err != nil {
		return refuse(payment.RefusedByLease, 0, err).answer
	}
	return *c.try(ctx, &q)
}

// worseOf keeps an unheard cancel: a refusal to its repetition may be the echo of its success. Of lookups the
// last one counts.
func worseOf(op string, before, a payment.Answer) payment.Answer {
	unheard := op == opCancel && (before.Kind == payment.KindReset || before.Kind == payment.KindTimeout ||
		before.Kind == payment.KindPanic || before.Kind == payment.KindKeyBusy)
	if !unheard {
		return a
	}
	switch a.Kind {
	case payment.KindPayment, payment.KindFault, payment.KindAmbiguous:
		return a
	case payment.KindDeclined, payment.KindRejected:
		a.Kind = payment.KindAmbiguous
		return a
	default:
		return before
	}
}

// pause waits; false if ctx ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func paymentPath(paymentKey string) string { return "v1/payments/" + url.PathEscape(paymentKey) }

// cancelBody is the JSON of a cancel. refundableAmount makes Toss refuse when its balance is not the one that
// we read; Toss wants the currency only where it is not won.
func cancelBody(call approval.CancelCall) []byte {
	fields := map[string]any{
		"cancelReason": call.Reason, "refundableAmount": json.Number(call.Balance.Text(call.Currency)),
	}
	if !call.Full {
		fields["cancelAmount"] = json.Number(call.Amount.Text(call.Currency))
	}
	if a := call.Account; a != nil {
		fields["refundReceiveAccount"] = map[string]string{"bank": a.Bank, "accountNumber": a.AccountNumber, "holderName": a.HolderName}
	}
	if call.Currency != payment.KRW {
		fields["currency"] = call.Currency
	}
	return encode(fields)
}
