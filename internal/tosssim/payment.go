package tosssim

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Status is Toss's word for where a payment stands.
type Status string

// The statuses of a Toss payment.
const (
	Ready             Status = "READY"
	InProgress        Status = "IN_PROGRESS"
	WaitingForDeposit Status = "WAITING_FOR_DEPOSIT"
	Done              Status = "DONE"
	PartialCanceled   Status = "PARTIAL_CANCELED"
	Canceled          Status = "CANCELED"
	Aborted           Status = "ABORTED"
	Expired           Status = "EXPIRED"
)

// Method is how a payment is made, in the words of the control port.
type Method string

// The methods that the simulator knows.
const (
	Card           Method = "card"
	VirtualAccount Method = "virtual_account"
	EasyPay        Method = "easy_pay"
	Transfer       Method = "transfer"
	MobilePhone    Method = "mobile_phone"
)

const (
	authenticateWithin = 30 * time.Minute
	depositWithin      = 7 * 24 * time.Hour
)

// payment is kept small: a load test leaves hundreds of thousands behind. Times are Unix nanoseconds, amounts minor units.
type payment struct {
	key, orderID, currency                   string
	method                                   Method
	status                                   Status
	amount                                   int64
	requestedAt, authenticatedAt, approvedAt int64
	returned                                 int64 // money given back
	approvals, running                       int32
	approval                                 txIndex
	rigid                                    bool // not partially cancelable
	decline, failure                         *apiError
	cancels                                  []refund
	older                                    *payment // previous attempt of the same order
}

// refund is one entry of cancels[]; void says that no money had been taken.
type refund struct {
	amount int64
	at     int64
	reason string
	tx     txIndex
	void   bool
}

// view says as of which moment a payment is shown, so that a replay costs no stored body.
type view struct {
	status  Status
	cancels int
}

func (p *payment) view() view { return view{p.status, len(p.cancels)} }

func (p *payment) balance(cancels int) int64 {
	b := p.amount
	for _, c := range p.cancels[:cancels] {
		b -= c.amount
	}
	return b
}

// finished: a confirm comes too late because the payment has its outcome.
func (p *payment) finished() bool {
	switch p.status {
	case Done, PartialCanceled, Canceled, Aborted, WaitingForDeposit:
		return true
	case Ready, InProgress, Expired: // never confirmed
	}
	return false
}

// age lets the two clocks of an unconfirmed payment run out; a call in progress holds them.
func (p *payment) age(now int64, window time.Duration, expired *apiError) {
	old := p.status == Ready && now-p.requestedAt > int64(authenticateWithin) ||
		p.status == InProgress && now-p.authenticatedAt > int64(window)
	if old && p.running == 0 {
		p.status, p.failure = Expired, expired
	}
}

// state is everything that Reset forgets.
type state struct {
	mu       sync.Mutex
	payments map[string]*payment
	orders   map[string]*payment
	all      []*payment
	keys     map[idempotencyKey]*firstAnswer
	txs      []transaction
	totals   Totals
	journal  *journal
}

func newState(callLog int) *state {
	return &state{
		payments: map[string]*payment{}, orders: map[string]*payment{},
		keys: map[idempotencyKey]*firstAnswer{}, journal: newJournal(callLog),
	}
}

func (st *state) add(p *payment) {
	p.older = st.orders[p.orderID]
	st.payments[p.key], st.orders[p.orderID] = p, p
	st.all = append(st.all, p)
}

// adopt brings a payment with a test_ key into the world at its first confirm; nil for other keys and impossible amounts.
func (st *state) adopt(w *confirmWork, now int64) *payment {
	kind, ok := strings.CutPrefix(w.paymentKey, "test_")
	if !ok {
		return nil
	}
	currency, method, status := "KRW", Card, InProgress
	switch {
	case strings.HasPrefix(kind, "va_"):
		method = VirtualAccount
	case strings.HasPrefix(kind, "usd_"):
		currency = "USD"
	case strings.HasPrefix(kind, "expired_"):
		status = Expired
	}
	amount, ok := parseMinor(w.amount, decimals(currency))
	if !ok || amount <= 0 {
		return nil
	}
	p := &payment{
		key: w.paymentKey, orderID: w.orderID, currency: currency, method: method, status: status,
		amount: amount, requestedAt: now, authenticatedAt: now,
	}
	if status == Expired {
		p.failure = w.s.codes["EXPIRED_PAYMENT"]
	}
	if strings.HasPrefix(kind, "decline_") {
		p.decline = w.s.codes["REJECT_CARD_PAYMENT"]
	}
	st.add(p)
	return p
}

// approve takes the money.
func (st *state) approve(p *payment, now int64) {
	p.status, p.approvedAt = Done, now
	p.approvals++
	p.approval = st.record(p, p.amount, now)
	st.totals.Approvals++
	st.totals.ApprovedSum += p.amount
}

// giveBack cancels amount of p; the caller has checked that it may.
func (st *state) giveBack(p *payment, amount, now int64, reason string) {
	left := p.balance(len(p.cancels)) - amount
	c := refund{amount: amount, at: now, reason: reason, void: p.approvals == 0}
	// Toss shows PARTIAL_CANCELED with balance 0 after the last of several partial cancels.
	if left > 0 || len(p.cancels) > 0 {
		p.status = PartialCanceled
	} else {
		p.status = Canceled
	}
	c.tx = st.record(p, -amount, now)
	p.cancels = append(p.cancels, c)
	st.totals.Cancels++
	if !c.void {
		p.returned += amount
		st.totals.CanceledSum += amount
	}
}

// transaction is one line of the reconciliation feed; its key is made from its place in it.
type transaction struct {
	p      *payment
	amount int64
	at     int64
	status Status
}

// txIndex is a place in the feed, counted from 1; 0 is none.
type txIndex uint32

const txMask = 0x7055_5349_4D00_0000

func (st *state) record(p *payment, amount, now int64) txIndex {
	st.txs = append(st.txs, transaction{p: p, amount: amount, at: now, status: p.status})
	return txIndex(len(st.txs))
}

func (i txIndex) key() string { return string(i.appendKey(nil)) }

func (i txIndex) appendKey(b []byte) []byte {
	return appendHex(appendHex(b, mix(uint64(i))), uint64(i)^txMask)
}

func appendHex(b []byte, n uint64) []byte {
	const digits = "0123456789ABCDEF"
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, digits[n>>shift&15])
	}
	return b
}

func txIndexOf(key string) (txIndex, bool) {
	if len(key) != 32 {
		return 0, false
	}
	n, err := strconv.ParseUint(key[16:], 16, 64)
	i := txIndex(n ^ txMask)
	return i, err == nil && i.key() == key
}

// mix spreads a counter over 64 bits (splitmix64).
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// decimals is how many digits after the point a currency has.
func decimals(currency string) int {
	switch currency {
	case "KRW", "JPY":
		return 0
	}
	return 2
}

// parseMinor reads a plain JSON number exactly; false for exponents, fractions too fine, and what is no number.
func parseMinor(raw []byte, decimals int) (int64, bool) {
	digits, negative := bytes.CutPrefix(raw, []byte("-"))
	whole, fraction, _ := bytes.Cut(digits, []byte("."))
	fraction = bytes.TrimRight(fraction, "0")
	if len(whole) == 0 || len(fraction) > decimals {
		return 0, false
	}
	var n int64
	for i := range len(whole) + decimals {
		d := byte('0')
		switch {
		case i < len(whole):
			d = whole[i]
		case i-len(whole) < len(fraction):
			d = fraction[i-len(whole)]
		}
		if d < '0' || d > '9' || n > (math.MaxInt64-9)/10 {
			return 0, false
		}
		n = n*10 + int64(d-'0')
	}
	if negative {
		n = -n
	}
	return n, true
}

// appendMinor writes minor units as a JSON number in whole units.
func appendMinor(b []byte, minor int64, decimals int) []byte {
	if decimals == 0 {
		return strconv.AppendInt(b, minor, 10)
	}
	if minor < 0 {
		b, minor = append(b, '-'), -minor
	}
	b = strconv.AppendInt(b, minor/100, 10)
	if cents := minor % 100; cents != 0 {
		b = append(b, '.', byte('0'+cents/10))
		if cents%10 != 0 {
			b = append(b, byte('0'+cents%10))
		}
	}
	return b
}
