package pg

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"paymentd/internal/payment"
)

const (
	// transactionsTimeout is Toss's own word: a page takes up to 60 s.
	transactionsTimeout = 60 * time.Second
	// transactionsPage lines have about half a MiB; Toss allows 5,000.
	transactionsPage = 1000
	maxPage          = 5000
	// maxPageBody is 3 KiB for each line of the largest page.
	maxPageBody = 16 << 20
	// throttledTries of a page meet a 429 with pauses of 1 s, 2 s, 4 s … in between: about four minutes.
	throttledTries = 8
	// brokenTries of a page get no usable answer.
	brokenTries = 3
	longestWait = 2 * time.Minute
)

var (
	errNotFeed  = errors.New("unreadable page of transactions")
	errCursor   = errors.New("the gateway repeats a page of transactions")
	errNoCursor = errors.New("the gateway gives a transaction without a key")
)

// Transactions reads Toss's reconciliation feed from from (inclusive) to to (exclusive), both in whole seconds, page by
// page in the order of the feed, and ends after the first error. Only one page is in memory. A page that Toss throttles
// (429) or does not answer is asked for again, a transport error three times in all; nothing is yielded twice.
//
// The feed is for reconciliation alone: a payment of the last minutes may be missing in it. Times are Korean and without
// an offset, because Toss refuses one (INVALID_DATE).
func (c *Client) Transactions(ctx context.Context, from, to time.Time) iter.Seq2[[]payment.Transaction, error] {
	return func(yield func([]payment.Transaction, error) bool) {
		feed := feedReader{cursors: map[string]bool{}}
		for {
			page, err := c.patientPage(ctx, c.pageRequest(from, to, feed.cursor))
			if err != nil {
				yield(nil, fmt.Errorf("read transactions: %w", err))
				return
			}
			fresh, err := feed.next(page)
			if err != nil {
				yield(nil, fmt.Errorf("read transactions: %w", err))
				return
			}
			if len(fresh) == 0 {
				return
			}
			// Whether Toss counts endDate in is not documented: we ask for more and cut.
			inside := slices.DeleteFunc(fresh, func(t payment.Transaction) bool {
				return !t.At.IsZero() && (t.At.Before(from) || !t.At.Before(to))
			})
			if !yield(inside, nil) {
				return
			}
		}
	}
}

// feedReader moves the cursor. A short page is not taken for the last one: whether Toss fills them is not documented.
type feedReader struct {
	cursor  string
	cursors map[string]bool
	last    map[string]bool // keys of the page before
}

// next returns what of a page is new; nothing at the end of the feed. A feed that turns in a circle is an error, not
// an audit without end.
func (f *feedReader) next(page []payment.Transaction) ([]payment.Transaction, error) {
	keys, fresh := make(map[string]bool, len(page)), make([]payment.Transaction, 0, len(page))
	for _, t := range page {
		if t.Key == "" {
			return nil, errNoCursor
		}
		if !f.last[t.Key] && !keys[t.Key] {
			fresh = append(fresh, t)
		}
		keys[t.Key] = true
	}
	switch {
	case len(page) == 0, len(page) == 1 && page[0].Key == f.cursor: // the cursor's own line, should Toss count it in
		return nil, nil
	case len(fresh) == 0, f.cursors[page[len(page)-1].Key]:
		return nil, errCursor
	}
	f.cursor, f.last = page[len(page)-1].Key, keys
	f.cursors[f.cursor] = true
	return fresh, nil
}

func (c *Client) pageRequest(from, to time.Time, cursor string) request {
	korea := time.FixedZone("KST", 9*60*60)
	const layout = "2006-01-02T15:04:05"
	q := url.Values{
		"startDate": {from.In(korea).Format(layout)}, "endDate": {to.In(korea).Format(layout)},
		"limit": {strconv.Itoa(cmp.Or(c.options.TransactionsPage, transactionsPage))},
	}
	if cursor != "" {
		q.Set("startingAfter", cursor)
	}
	return request{
		op: opTransactions, method: http.MethodGet, path: "v1/transactions", query: q.Encode(), maxBody: maxPageBody,
		timeout: cmp.Or(c.options.TransactionsTimeout, transactionsTimeout),
	}
}

// patientPage tries one page until it has it or knows better.
func (c *Client) patientPage(ctx context.Context, q request) (page []payment.Transaction, err error) {
	q.read = func(a answer, r reply) {
		a.Kind = payment.KindPayment
		if page, a.Err = decodeTransactions(r.body); a.Err != nil {
			a.Kind = payment.KindFault
		}
	}
	throttled, broken := 0, 0
	for {
		a := c.within(ctx, q, c.lookups.take(ctx, forever))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var wait time.Duration
		switch a.Kind {
		case payment.KindPayment:
			return page, nil
		case payment.KindThrottled:
			wait = min(max(time.Second<<throttled, a.RetryAfter), longestWait)
			throttled++
		case payment.KindNotConnected, payment.KindReset, payment.KindTimeout, payment.KindFault, payment.KindKeyBusy:
			wait = time.Second << broken
			broken++
		default:
			return nil, failedPage(a)
		}
		if throttled >= throttledTries || broken >= brokenTries {
			return nil, failedPage(a)
		}
		if !pause(ctx, wait) {
			return nil, context.Cause(ctx)
		}
	}
}

// failedPage says why a page could not be read, in words of our own and Toss's code.
func failedPage(a payment.Answer) error {
	text := "gateway answer: " + string(a.Kind)
	if a.HTTPStatus != 0 {
		text += fmt.Sprintf(", status %d %s", a.HTTPStatus, a.Code)
	}
	if a.Err != nil {
		return fmt.Errorf("%s: %w", strings.TrimSpace(text), a.Err)
	}
	return errors.New(strings.TrimSpace(text))
}

// wireTransaction is what paymentd reads of Toss's Transaction object.
type wireTransaction struct {
	TransactionKey string           `json:"transactionKey"`
	PaymentKey     string           `json:"paymentKey"`
	OrderID        optional[string] `json:"orderId"`
	Status         optional[string] `json:"status"`
	TransactionAt  optional[string] `json:"transactionAt"`
	Currency       optional[string] `json:"currency"`
	// Amount may come in any form: a line that cannot be read must not hide the others.
	Amount optional[json.Number] `json:"amount"`
}

// decodeTransactions reads a page. Its errors are fixed texts: the decoder's own would repeat what was sent.
func decodeTransactions(body []byte) ([]payment.Transaction, error) {
	var lines []wireTransaction
	if err := json.Unmarshal(body, &lines); err != nil || lines == nil {
		return nil, errNotFeed
	}
	page := make([]payment.Transaction, 0, len(lines))
	for _, w := range lines {
		if w.PaymentKey == "" {
			return nil, errNotFeed
		}
		page = append(page, transactionOf(w))
	}
	return page, nil
}

// transactionOf gives the amount its sign. Toss does not document how the feed shows a cancel: a negative amount and
// a positive one under a cancel's status both mean money that went back.
func transactionOf(w wireTransaction) payment.Transaction {
	t := payment.Transaction{
		Key: firstOf(w.TransactionKey, maxField), PaymentKey: w.PaymentKey, OrderID: firstOf(w.OrderID.value, maxField),
		Status: payment.SightingOf(w.Status.value), At: parseTime(w.TransactionAt.value), Currency: payment.Currency(w.Currency.value),
	}
	text, negative := strings.CutPrefix(w.Amount.value.String(), "-")
	amount, err := payment.ParseAmount(text, t.Currency)
	if err != nil {
		t.Status = payment.SeenUnknownStatus
		return t
	}
	if negative || t.Status == payment.SeenCanceled || t.Status == payment.SeenPartlyCanceled {
		amount = -amount
	}
	t.Amount = amount
	return t
}
