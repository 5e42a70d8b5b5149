package tosssim

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// refused is the work of a request that cannot be read.
type refused struct{ err *apiError }

func (w refused) admit(*state, int64) (answer, bool) { return answer{err: w.err}, true }
func (w refused) finish(*state, int64) answer        { return answer{err: w.err} }

// confirmWork approves a payment.
type confirmWork struct {
	s          *Simulator
	paymentKey string
	orderID    string
	amount     []byte
	decline    *apiError // a fault wants the buyer declined
	p          *payment
}

func (s *Simulator) confirm(c *call) {
	var in confirmBody
	b, err := c.body()
	if err == nil && !in.scan(b) {
		in = confirmBody{}
		err = json.Unmarshal(b, &in)
	}
	c.paymentKey, c.orderID = in.PaymentKey, in.OrderID
	if err != nil || in.PaymentKey == "" || len(in.PaymentKey) > 200 || !validOrderID(in.OrderID) || len(in.Amount) == 0 {
		s.post(c, refused{s.codes["INVALID_REQUEST"]})
		return
	}
	s.post(c, &confirmWork{s: s, paymentKey: in.PaymentKey, orderID: in.OrderID, amount: in.Amount})
}

type confirmBody struct {
	PaymentKey string          `json:"paymentKey"`
	OrderID    string          `json:"orderId"`
	Amount     json.RawMessage `json:"amount"`
}

// scan reads the plain form that clients send, without escapes or nesting, at a fifth of the cost of
// encoding/json; false means that it has to look.
func (in *confirmBody) scan(b []byte) bool {
	b, ok := bytes.CutPrefix(b, []byte(`{"`))
	for ok {
		name, rest, _ := bytes.Cut(b, []byte(`":`))
		value, end := plainValue(rest)
		if end == 0 || !in.set(name, value, rest[0] == '"') {
			return false
		}
		if rest[end] == '}' {
			return len(rest) == end+1
		}
		b, ok = bytes.CutPrefix(rest[end:], []byte(`,"`))
	}
	return false
}

// plainValue is the value that b begins with, a text without its quotes, and where it ended: before the end of b, or
// at 0 when encoding/json has to look.
func plainValue(b []byte) (value []byte, end int) {
	if len(b) == 0 || b[0] != '"' {
		end = max(bytes.IndexAny(b, ",}"), 0)
		return b[:end], end
	}
	n := bytes.IndexByte(b[1:], '"')
	if n < 0 || n+2 >= len(b) {
		return nil, 0
	}
	if value = b[1 : n+1]; bytes.IndexByte(value, '\\') >= 0 || !printable(value) {
		return nil, 0
	}
	return value, n + 2
}

// set fills a field; false means an unknown field, one given twice or a value that is not plain.
func (in *confirmBody) set(name, value []byte, text bool) bool {
	switch {
	case text && string(name) == "paymentKey" && in.PaymentKey == "":
		in.PaymentKey = string(value)
	case text && string(name) == "orderId" && in.OrderID == "":
		in.OrderID = string(value)
	case !text && string(name) == "amount" && in.Amount == nil && value[0] != '0' && len(bytes.Trim(value, "0123456789")) == 0:
		in.Amount = bytes.Clone(value)
	default:
		return false
	}
	return true
}

func printable(b []byte) bool {
	for _, c := range b {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

func validOrderID(id string) bool {
	if len(id) < 6 || len(id) > 64 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("-_=.", c) < 0 {
			return false
		}
	}
	return true
}

func (w *confirmWork) admit(st *state, now int64) (answer, bool) {
	set := w.s.settings.Load()
	p, err := w.find(st, now)
	if err == nil {
		p.age(now, set.Window, w.s.codes["EXPIRED_PAYMENT"])
		err = w.refusal(p, set)
	}
	if err != nil {
		return answer{err: err}, true
	}
	p.running++
	w.p = p
	return answer{}, false
}

// find returns the payment of the key, which may be one that nobody has brought into the world before.
func (w *confirmWork) find(st *state, now int64) (*payment, *apiError) {
	p := st.payments[w.paymentKey]
	if p == nil {
		p = st.adopt(w, now)
	}
	switch {
	case p != nil:
		return p, nil
	case strings.HasPrefix(w.paymentKey, "test_"):
		return nil, w.s.codes["INVALID_REQUEST"]
	}
	return nil, w.s.codes["NOT_FOUND_PAYMENT_SESSION"]
}

// refusal compares in the order that is hardest on the caller: a finished payment hides a wrong amount.
func (w *confirmWork) refusal(p *payment, set *Settings) *apiError {
	codes := w.s.codes
	switch {
	case p.running > 0 && set.SingleUse && set.BusyAsS008:
		return w.s.busy()
	case p.running > 0 && set.SingleUse:
		return codes["ALREADY_PROCESSING_REQUEST"]
	case p.status == Ready || p.status == Expired:
		return codes["NOT_FOUND_PAYMENT_SESSION"]
	case p.finished() && (set.SingleUse || p.status != Done):
		return codes["ALREADY_PROCESSED_PAYMENT"]
	case p.orderID != w.orderID:
		return codes["FORBIDDEN_REQUEST"]
	}
	if amount, ok := parseMinor(w.amount, decimals(p.currency)); !ok || amount != p.amount {
		return codes["INVALID_REQUEST"]
	}
	return nil
}

func (w *confirmWork) finish(st *state, now int64) answer {
	p := w.p
	p.running--
	decline := p.decline
	if w.decline != nil {
		decline = w.decline
	}
	switch {
	case decline != nil && !p.finished():
		p.status, p.failure = Aborted, decline
		return answer{err: decline}
	case p.method == VirtualAccount:
		p.status = WaitingForDeposit
	default:
		st.approve(p, now)
	}
	return answer{p: p, as: p.view()}
}

func (s *Simulator) busy() *apiError {
	e := *s.codes["FAILED_PAYMENT_INTERNAL_SYSTEM_PROCESSING"]
	e.KO, e.EN = "[S008] 기존 요청을 처리중입니다.", "[S008] The existing request is being processed."
	return &e
}

// cancelBody is what POST /v1/payments/{paymentKey}/cancel takes; unknown fields are ignored, as Toss does.
type cancelBody struct {
	CancelReason     *string         `json:"cancelReason"`
	CancelAmount     json.RawMessage `json:"cancelAmount"`
	RefundableAmount json.RawMessage `json:"refundableAmount"`
	Currency         string          `json:"currency"`
	Account          *refundAccount  `json:"refundReceiveAccount"`
}

type refundAccount struct {
	Bank          string `json:"bank"`
	AccountNumber string `json:"accountNumber"`
	HolderName    string `json:"holderName"`
}

// cancelWork gives money back. Everything is checked at the end, so that two cancels at once cannot both pass a check.
type cancelWork struct {
	s          *Simulator
	paymentKey string
	in         cancelBody
}

func (s *Simulator) cancel(c *call) {
	c.paymentKey = c.r.PathValue("paymentKey")
	w := &cancelWork{s: s, paymentKey: c.paymentKey}
	b, err := c.body()
	if err == nil {
		err = json.Unmarshal(b, &w.in)
	}
	if r := w.in.CancelReason; err != nil || r == nil || *r == "" || utf8.RuneCountInString(*r) > 200 {
		s.post(c, refused{s.codes["INVALID_REQUEST"]})
		return
	}
	s.post(c, w)
}

func (w *cancelWork) admit(*state, int64) (answer, bool) { return answer{}, false }

func (w *cancelWork) finish(st *state, now int64) answer {
	p := st.payments[w.paymentKey]
	if p == nil {
		return answer{err: w.s.codes["NOT_FOUND_PAYMENT"]}
	}
	p.age(now, w.s.Settings().Window, w.s.codes["EXPIRED_PAYMENT"])
	amount, code := w.check(p)
	if code != "" {
		return answer{err: w.s.codes[code]}
	}
	st.giveBack(p, amount, now, *w.in.CancelReason)
	return answer{p: p, as: p.view()}
}

// check returns the amount to cancel, or the code of the refusal.
func (w *cancelWork) check(p *payment) (int64, string) {
	balance := p.balance(len(p.cancels))
	amount, ok := w.amount(p, balance)
	if !ok {
		return 0, "INVALID_REQUEST"
	}
	partial := amount != balance || len(p.cancels) > 0
	if code := p.uncancelable(balance, partial); code != "" {
		return 0, code
	}
	if given(w.in.RefundableAmount) {
		if guard, ok := parseMinor(w.in.RefundableAmount, decimals(p.currency)); !ok || guard != balance {
			return 0, "NOT_MATCHES_REFUNDABLE_AMOUNT"
		}
	}
	switch {
	case amount > balance:
		return 0, "NOT_CANCELABLE_AMOUNT"
	case partial && p.rigid:
		return 0, "NOT_ALLOWED_PARTIAL_REFUND"
	case p.method == VirtualAccount && p.status != WaitingForDeposit:
		return amount, w.in.Account.problem()
	}
	return amount, ""
}

// amount is what the caller wants back, the whole balance unless a part is named; false means that it cannot be read.
func (w *cancelWork) amount(p *payment, balance int64) (int64, bool) {
	if w.in.Currency != "" && w.in.Currency != p.currency {
		return 0, false
	}
	if !given(w.in.CancelAmount) {
		return balance, true
	}
	amount, ok := parseMinor(w.in.CancelAmount, decimals(p.currency))
	return amount, ok && amount > 0
}

// uncancelable is the code by which the status forbids a cancel, "" when it allows it.
func (p *payment) uncancelable(balance int64, partial bool) string {
	switch {
	case p.status == Canceled || p.status == PartialCanceled && balance == 0:
		return "ALREADY_CANCELED_PAYMENT"
	case p.status == WaitingForDeposit && partial:
		return "NOT_ALLOWED_PARTIAL_REFUND_WAITING_DEPOSIT"
	case p.status != WaitingForDeposit && p.status != Done && p.status != PartialCanceled:
		return "NOT_CANCELABLE_PAYMENT"
	}
	return ""
}

func (a *refundAccount) problem() string {
	switch {
	case a == nil || a.HolderName == "" || utf8.RuneCountInString(a.HolderName) > 60:
		return "INVALID_REFUND_ACCOUNT_INFO"
	case a.Bank == "":
		return "INVALID_BANK"
	case a.AccountNumber == "" || len(a.AccountNumber) > 20 || strings.Trim(a.AccountNumber, "0123456789") != "":
		return "INVALID_REFUND_ACCOUNT_NUMBER"
	}
	return ""
}

func given(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }
