package tosssim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// NewPayment is a payment that the buyer brings about in the payment window, or an order to move one there is.
type NewPayment struct {
	PaymentKey string `json:"paymentKey"`
	OrderID    string `json:"orderId"`
	// Amount is in minor units (won, cents).
	Amount int64 `json:"amount"`
	// Currency defaults to KRW.
	Currency string `json:"currency,omitempty"`
	// Method defaults to card.
	Method Method `json:"method,omitempty"`
	// Status defaults to IN_PROGRESS, the buyer having authenticated just now.
	Status Status `json:"status,omitempty"`
	// Decline is the code by which a confirm will be declined.
	Decline string `json:"decline,omitempty"`
	// NoPartialCancel makes isPartialCancelable false.
	NoPartialCancel bool `json:"noPartialCancel,omitempty"`
}

// edges are the documented moves that the back office may bring about; cancels have a call of their own.
func edges(from Status) []Status {
	switch from {
	case Ready:
		return []Status{InProgress, WaitingForDeposit, Expired}
	case InProgress:
		return []Status{Done, Aborted, Expired, WaitingForDeposit}
	case WaitingForDeposit:
		return []Status{Done, Canceled}
	case Done:
		return []Status{Canceled}
	case PartialCanceled:
		return []Status{Canceled}
	case Canceled, Aborted, Expired: // the end
	}
	return nil
}

// AddPayment brings a payment into the world in any status but PARTIAL_CANCELED; DONE and CANCELED take the money, and
// CANCELED gives it back.
func (s *Simulator) AddPayment(n NewPayment) (Entry, error) {
	n.Currency, n.Method, n.Status = cmp.Or(n.Currency, "KRW"), cmp.Or(n.Method, Card), cmp.Or(n.Status, InProgress)
	if err := s.checkNew(n); err != nil {
		return Entry{}, err
	}
	st := s.state.Load()
	st.mu.Lock()
	defer st.mu.Unlock()
	now := s.now()
	if st.payments[n.PaymentKey] != nil {
		return Entry{}, fmt.Errorf("paymentKey: %q exists already; move it with POST /control/status", n.PaymentKey)
	}
	p := &payment{
		key: n.PaymentKey, orderID: n.OrderID, currency: n.Currency, method: n.Method, status: InProgress, amount: n.Amount,
		requestedAt: now, authenticatedAt: now, decline: s.codes[n.Decline], rigid: n.NoPartialCancel,
	}
	st.add(p)
	if n.Status == Canceled {
		st.approve(p, now)
	}
	if n.Status != InProgress {
		s.move(st, p, n.Status)
	}
	return p.entry(), nil
}

func (s *Simulator) checkNew(n NewPayment) error {
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	must(n.PaymentKey != "" && len(n.PaymentKey) <= 200, "paymentKey: must have 1 to 200 characters")
	must(validOrderID(n.OrderID), "orderId: must have 6 to 64 characters out of letters, digits, - _ = .")
	must(n.Amount > 0, "amount: must be above 0, in minor units")
	must(len(n.Currency) >= 3, "currency: must be a code such as KRW")
	must(slices.Contains([]Method{Card, VirtualAccount, EasyPay, Transfer, MobilePhone}, n.Method),
		"method: %q is not one of card, virtual_account, easy_pay, transfer, mobile_phone", n.Method)
	must(slices.Contains([]Status{Ready, InProgress, WaitingForDeposit, Done, Canceled, Aborted, Expired}, n.Status),
		"status: %q cannot be made; use a Toss status but PARTIAL_CANCELED (make DONE, then POST /control/cancel)", n.Status)
	must(n.Decline == "" || s.codes[n.Decline] != nil, "decline: %q is not a code of Toss", n.Decline)
	return errors.Join(errs...)
}

// Move brings a payment to a status along an edge that Toss documents, as the buyer, a bank or the merchant's own
// back office would: DONE takes the money, CANCELED gives the whole balance back.
func (s *Simulator) Move(paymentKey string, to Status) (Entry, error) {
	return s.change(paymentKey, func(st *state, p *payment) error {
		if !slices.Contains(edges(p.status), to) {
			return fmt.Errorf("status: no way from %s to %s; possible: %v", p.status, to, edges(p.status))
		}
		s.move(st, p, to)
		return nil
	})
}

func (s *Simulator) move(st *state, p *payment, to Status) {
	now := s.now()
	switch to {
	case Done:
		st.approve(p, now)
	case Canceled:
		st.giveBack(p, p.balance(len(p.cancels)), now, "cancelled in the back office")
		p.status = Canceled
	case Expired:
		p.status, p.failure = to, s.codes["EXPIRED_PAYMENT"]
	case Aborted:
		p.status, p.failure = to, cmp.Or(p.decline, s.codes["REJECT_CARD_PAYMENT"])
	case InProgress:
		p.status, p.authenticatedAt = to, now
	default:
		p.status = to
	}
}

// Cancel gives amount (minor units; 0 is the balance) back past the public API, as a person in Toss's back office does.
func (s *Simulator) Cancel(paymentKey string, amount int64) (Entry, error) {
	return s.change(paymentKey, func(st *state, p *payment) error {
		balance := p.balance(len(p.cancels))
		amount := cmp.Or(amount, balance)
		if p.status != Done && p.status != PartialCanceled && p.status != WaitingForDeposit {
			return fmt.Errorf("status: a payment in %s cannot be cancelled", p.status)
		}
		if amount < 0 || amount > balance || balance == 0 {
			return fmt.Errorf("amount: %d is not within the balance of %d", amount, balance)
		}
		st.giveBack(p, amount, s.now(), "cancelled in the back office")
		return nil
	})
}

// Deposit pays a virtual account in: WAITING_FOR_DEPOSIT to DONE.
func (s *Simulator) Deposit(paymentKey string) (Entry, error) { return s.Move(paymentKey, Done) }

// ReverseDeposit takes a deposit back because of a bank's mistake: DONE to WAITING_FOR_DEPOSIT.
func (s *Simulator) ReverseDeposit(paymentKey string) (Entry, error) {
	return s.change(paymentKey, func(st *state, p *payment) error {
		if p.method != VirtualAccount || p.status != Done {
			return fmt.Errorf("status: only a virtual account in DONE can be reversed, this is %s in %s", p.method, p.status)
		}
		p.status, p.approvedAt, p.approval = WaitingForDeposit, 0, 0
		p.approvals--
		st.totals.Approvals--
		st.totals.ApprovedSum -= p.amount
		st.record(p, -p.amount, s.now())
		return nil
	})
}

func (s *Simulator) change(paymentKey string, f func(*state, *payment) error) (Entry, error) {
	st := s.state.Load()
	window, now := s.Settings().Window, s.now()
	st.mu.Lock()
	defer st.mu.Unlock()
	p := st.payments[paymentKey]
	if p == nil {
		return Entry{}, fmt.Errorf("paymentKey: %q is not known; make it with POST /control/payments", paymentKey)
	}
	p.age(now, window, s.codes["EXPIRED_PAYMENT"])
	if err := f(st, p); err != nil {
		return p.entry(), err
	}
	return p.entry(), nil
}

// Events that SendWebhook can send.
const (
	EventStatusChanged = "PAYMENT_STATUS_CHANGED"
	EventDeposit       = "DEPOSIT_CALLBACK"
)

// Webhook asks for one delivery.
type Webhook struct {
	PaymentKey string `json:"paymentKey"`
	URL        string `json:"url"`
	// Event defaults to DEPOSIT_CALLBACK for a virtual account, else PAYMENT_STATUS_CHANGED.
	Event string `json:"event,omitempty"`
	// TransmissionID and Retried make a resend; the default is a new id and 0.
	TransmissionID string `json:"transmissionId,omitempty"`
	Retried        int    `json:"retried,omitempty"`
}

// Delivery is what became of a webhook; Toss counts only 200 within 10 s as a success.
type Delivery struct {
	TransmissionID string          `json:"transmissionId"`
	Status         int             `json:"status"`
	Took           Duration        `json:"took"`
	Body           json.RawMessage `json:"body"`
}

// SendWebhook sends one webhook, unsigned as Toss's payment webhooks are, and waits up to 10 s for the answer.
func (s *Simulator) SendWebhook(ctx context.Context, h Webhook) (Delivery, error) {
	body, err := s.webhookBody(&h)
	if err != nil {
		return Delivery{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return Delivery{}, fmt.Errorf("url: %w", err)
	}
	d := Delivery{TransmissionID: h.TransmissionID, Body: body}
	if d.TransmissionID == "" {
		d.TransmissionID = "whtrans_" + string(appendHex(nil, mix(s.traces.Add(1))))
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Tosspayments-Webhook-Transmission-Time", s.Now().UTC().Add(kst).Format("2006-01-02T15:04:05.000000+09:00"))
	req.Header.Set("Tosspayments-Webhook-Transmission-Retried-Count", fmt.Sprint(h.Retried))
	req.Header.Set("Tosspayments-Webhook-Transmission-Id", d.TransmissionID)
	began := time.Now()
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := (&http.Client{Transport: transport}).Do(req)
	d.Took = Duration(time.Since(began))
	if err != nil {
		return d, fmt.Errorf("send webhook: %w", err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	d.Status = res.StatusCode
	return d, nil
}

func (s *Simulator) webhookBody(h *Webhook) ([]byte, error) {
	pen := &pen{}
	_, err := s.change(h.PaymentKey, func(_ *state, p *payment) error {
		if h.Event == "" {
			h.Event = EventStatusChanged
			if p.method == VirtualAccount {
				h.Event = EventDeposit
			}
		}
		created := s.Now().UTC().Add(kst).Format("2006-01-02T15:04:05.000000")
		switch h.Event {
		case EventStatusChanged:
			if !slices.Contains([]Status{Done, Aborted, Expired, Canceled, PartialCanceled}, p.status) {
				return fmt.Errorf("event: Toss sends no %s for %s", h.Event, p.status)
			}
			pen.text(`{"eventType":`, h.Event).text(`,"createdAt":`, created).raw(`,"data":`)
			pen.payment(p, p.view())
			pen.raw(`}`)
		case EventDeposit:
			if p.method != VirtualAccount {
				return fmt.Errorf("event: %s is for virtual accounts only, this is %s", h.Event, p.method)
			}
			pen.text(`{"createdAt":`, created).text(`,"secret":`, p.secret()).text(`,"status":`, string(p.status)).raw(`,"transactionKey":`)
			pen.transactionKey(p, p.view(), p.approval != 0)
			pen.text(`,"orderId":`, p.orderID).raw(`}`)
		default:
			return fmt.Errorf("event: %q is not %s or %s", h.Event, EventStatusChanged, EventDeposit)
		}
		return nil
	})
	return pen.b, err
}
