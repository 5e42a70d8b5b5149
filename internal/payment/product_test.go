package payment_test

import (
	"iter"
	"slices"
	"testing"
	"time"

	"paymentd/internal/payment"
)

// situation is one point of everything that Decide can be asked.
type situation struct {
	row payment.Payment
	saw payment.Observation
}

func (s situation) decide() payment.Action { return rules.Decide(s.row, s.saw, now) }

var (
	productAges = []time.Duration{
		0, 2*time.Minute - 1, 2 * time.Minute, 9*time.Minute - 1, 9 * time.Minute, 15*time.Minute - 1, 15 * time.Minute,
		time.Hour - 1, time.Hour, 30 * 24 * time.Hour,
	}
	productOverdue = []time.Duration{-time.Hour, 24 * time.Hour, 24*time.Hour + 1}
	productDiffers = []string{"", "paymentKey", "orderId", "amount", "currency"}
	productBalance = []payment.Amount{0, 5000, 15000}
	productCancels = [][]payment.GatewayCancel{
		nil,
		{{Amount: 1, Reason: ourReason}},
		{{Amount: 1, Reason: ourReason}, {Amount: 1, Reason: foreignReason}},
		{{Amount: 1, Reason: foreignReason}, {Amount: 1, Reason: ourReason}},
	}
)

// productRows is every local side: state, maybe_sent, ages around each limit, due dates, amounts returned.
func productRows(yield func(payment.Payment) bool) {
	for _, status := range append(payment.Statuses(), "REFUNDED") {
		for _, age := range productAges {
			for _, maybeSent := range []bool{true, false} {
				for _, canceled := range []payment.Amount{0, 5000, 15000} {
					p := row(status, age)
					if !maybeSent {
						p = neverSent(age)
						p.Status = status
					}
					p.CanceledAmount = canceled
					if status != payment.AwaitingDeposit {
						if !yield(p) {
							return
						}
						continue
					}
					for _, overdue := range productOverdue {
						p.VirtualAccount = awaiting(overdue).VirtualAccount
						if !yield(p) {
							return
						}
					}
				}
			}
		}
	}
}

// productSights is every gateway side: sighting, agreement with the order, balance, whose cancels.
func productSights(yield func(payment.Observation) bool) {
	for _, sighting := range append(payment.Sightings(), "SETTLED") {
		for _, field := range productDiffers {
			for _, balance := range productBalance {
				for _, cancels := range productCancels {
					o := other(saw(sighting, balance), field)
					if o.Balance > o.Total {
						o.Balance = o.Total
					}
					o.Cancels = cancels
					if !yield(o) {
						return
					}
				}
			}
		}
	}
}

// product is their product.
func product() iter.Seq[situation] {
	return func(yield func(situation) bool) {
		for p := range productRows {
			for o := range productSights {
				if !yield(situation{row: p, saw: o}) {
					return
				}
			}
		}
	}
}

// invariants are what holds for whatever Decide is asked. Each returns true if the action is allowed.
var invariants = []struct {
	name  string
	holds func(s situation, a payment.Action) bool
}{
	{"a known verb", func(_ situation, a payment.Action) bool {
		return slices.Contains([]payment.Verb{
			payment.Stay, payment.Settle, payment.Send, payment.Wait, payment.Park, payment.GiveBack, payment.CancelDeposit,
		}, a.Do)
	}},
	{"a reason", func(_ situation, a payment.Action) bool { return a.Reason != "" }},
	{"only Settle has a target, and always", func(_ situation, a payment.Action) bool {
		return (a.Do == payment.Settle) == (a.To != "")
	}},
	{"only FAILED has a failure, and always", func(_ situation, a payment.Action) bool {
		return (a.To == payment.Failed) == (a.Failure != nil && a.Failure.Code != "")
	}},
	{"Decide never reopens", func(_ situation, a payment.Action) bool {
		return a.To != payment.Pending && (a.Failure == nil || !a.Failure.Reopens())
	}},
	{"a final state is left from PAID to CANCELED alone", func(s situation, a payment.Action) bool {
		return a.Do != payment.Settle || s.row.Status.Unfinished() ||
			s.row.Status == payment.Paid && (a.To == payment.Paid || a.To == payment.Canceled)
	}},
	{"the guard of the SQL lets every settle through", func(s situation, a payment.Action) bool {
		return a.Do != payment.Settle || slices.Contains(payment.SettleFrom(a.To), s.row.Status)
	}},
	{"FAILED and charged for our order: give back", func(s situation, a payment.Action) bool {
		return s.row.Status != payment.Failed || (s.saw.Charged() && !foreign(s)) == (a.Do == payment.GiveBack)
	}},
	{"nothing of another order is given back or canceled", func(s situation, a payment.Action) bool {
		return s.row.Status != payment.Failed || !foreign(s) || a.Do == payment.Stay
	}},
	{"only FAILED gives back", func(s situation, a payment.Action) bool {
		return a.Do != payment.GiveBack || s.row.Status == payment.Failed
	}},
	{"no answer and unknown words settle nothing", func(s situation, a payment.Action) bool {
		silent := s.saw.Sighting == payment.SeenNoAnswer || s.saw.Sighting == payment.SeenUnknownStatus
		return !silent || a.Do == payment.Wait || a.Do == payment.Stay
	}},
	{"no lookup settles only what was never sent", func(s situation, a payment.Action) bool {
		return s.saw.Sighting != payment.SeenNothing || a.Do != payment.Settle ||
			s.row.Status == payment.Pending && !s.row.MaybeSent && a.To == payment.Failed
	}},
	{"PAID only by a full match", func(s situation, a payment.Action) bool {
		if a.To != payment.Paid {
			return true
		}
		whole := s.saw.Sighting == payment.SeenDone && s.saw.Balance == s.saw.Total
		partly := s.saw.Sighting == payment.SeenPartlyCanceled && s.saw.Balance > 0 &&
			(s.row.Status == payment.Paid || s.row.Status == payment.Pending && a.Incident == payment.UnexpectedState)
		return s.saw.Matches(s.row) && (whole || partly)
	}},
	{"AWAITING_DEPOSIT only by a match", func(s situation, a payment.Action) bool {
		return a.To != payment.AwaitingDeposit || s.saw.Sighting == payment.SeenWaiting && s.saw.Matches(s.row)
	}},
	{"CANCELED only with balance 0", func(s situation, a payment.Action) bool {
		return a.To != payment.Canceled || s.saw.Balance == 0
	}},
	{"never FAILED while Toss holds money", func(s situation, a payment.Action) bool {
		return a.To != payment.Failed || !s.saw.Charged()
	}},
	{"send: PENDING, open, in time", func(s situation, a payment.Action) bool {
		if a.Do != payment.Send {
			return true
		}
		age := now.Sub(s.row.ReservedAt)
		open := slices.Contains([]payment.Sighting{
			payment.SeenNothing, payment.SeenNotFound, payment.SeenReady, payment.SeenInProgress,
		}, s.saw.Sighting)
		within := rules.SendWithin
		if s.row.MaybeSent {
			within = rules.ResendWithin
			open = open && s.saw.Sighting != payment.SeenNothing
		}
		return s.row.Status == payment.Pending && open && age < within
	}},
	{"open at Toss and maybe sent: FAILED only after the window, with a second look", func(s situation, a payment.Action) bool {
		open := slices.Contains([]payment.Sighting{payment.SeenNotFound, payment.SeenReady, payment.SeenInProgress}, s.saw.Sighting)
		if !open || !s.row.MaybeSent || a.To != payment.Failed {
			return true
		}
		return !now.Before(rules.Lost(s.row)) && a.VerifyIn == rules.VerifyAfter
	}},
	{"an account is cancelled only while it is unpaid", func(s situation, a payment.Action) bool {
		return a.Do != payment.CancelDeposit || s.saw.Sighting == payment.SeenWaiting
	}},
	{"parked means mismatch", func(_ situation, a payment.Action) bool {
		return a.Do != payment.Park || a.Incident == payment.Mismatch
	}},
	{"a state or word that is none: stay, unexpected_state", func(s situation, a payment.Action) bool {
		foreign := s.row.Status == "REFUNDED" || s.saw.Sighting == "SETTLED" && s.row.Status != payment.Failed
		return !foreign || a.Do == payment.Stay && a.Incident == payment.UnexpectedState
	}},
}

// foreign is an observation of another payment or order.
func foreign(s situation) bool {
	return s.saw.PaymentKey != s.row.PaymentKey || s.saw.OrderID != s.row.OrderID
}

func TestDecideProduct(t *testing.T) {
	t.Parallel()
	asked := 0
	broken := map[string]bool{}
	for s := range product() {
		asked++
		a := s.decide()
		for _, rule := range invariants {
			if !rule.holds(s, a) && !broken[rule.name] {
				broken[rule.name] = true
				t.Errorf("%s: broken by\n%+v\nand\n%+v:\n%+v", rule.name, s.row, s.saw, a)
			}
		}
	}
	if asked < 300_000 {
		t.Errorf("asked %d times, the product has lost an axis", asked)
	}
}

// TestDecideUnlisted walks the pairs that the state table does not name, by list: whoever adds a row takes it out here.
func TestDecideUnlisted(t *testing.T) {
	t.Parallel()
	unlisted := map[payment.Status][]payment.Sighting{
		payment.AwaitingDeposit: {
			payment.SeenNotFound, payment.SeenReady, payment.SeenInProgress, payment.SeenDeclined, payment.SeenSessionGone,
		},
		payment.Paid: {
			payment.SeenNotFound, payment.SeenReady, payment.SeenInProgress, payment.SeenWaiting, payment.SeenAborted,
			payment.SeenExpired, payment.SeenDeclined, payment.SeenSessionGone,
		},
		payment.Canceled: {
			payment.SeenNotFound, payment.SeenReady, payment.SeenInProgress, payment.SeenWaiting, payment.SeenAborted,
			payment.SeenExpired, payment.SeenDeclined, payment.SeenSessionGone,
		},
	}
	for s := range product() {
		if !slices.Contains(unlisted[s.row.Status], s.saw.Sighting) {
			continue
		}
		if a := s.decide(); a.Do != payment.Stay || a.Incident != payment.UnexpectedState {
			t.Fatalf("%s and %s: %+v, want stay and unexpected_state", s.row.Status, s.saw.Sighting, a)
		}
	}
}

// TestDecideIncidents: beside the unlisted pairs, these and only these open an incident. Above all, silence opens one
// for a PENDING payment alone, and nothing that is consistent with FAILED does.
func TestDecideIncidents(t *testing.T) {
	t.Parallel()
	for s := range product() {
		a := s.decide()
		silent := slices.Contains([]payment.Sighting{
			payment.SeenNothing, payment.SeenNoAnswer, payment.SeenUnknownStatus,
		}, s.saw.Sighting)
		switch {
		case a.Incident == payment.UnknownOutcome:
			if s.row.Status != payment.Pending || !silent || now.Sub(s.row.ReservedAt) < rules.UnknownIncidentAfter {
				t.Fatalf("%s and %s: %+v", s.row.Status, s.saw.Sighting, a)
			}
		case a.Incident == payment.Mismatch || a.Incident == payment.UnexpectedState:
			if s.row.Status == payment.Failed && !foreign(s) || silent && s.row.Status != "REFUNDED" {
				t.Fatalf("%s and %s: %+v", s.row.Status, s.saw.Sighting, a)
			}
		case a.Incident != "":
			t.Fatalf("%s and %s: Decide does not know of %s", s.row.Status, s.saw.Sighting, a.Incident)
		}
	}
}

// TestSettleFrom: the guard of the SQL statements holds what Decide makes and nothing else.
func TestSettleFrom(t *testing.T) {
	t.Parallel()
	type move struct{ from, to payment.Status }
	made := map[move]bool{}
	for s := range product() {
		if a := s.decide(); a.Do == payment.Settle {
			made[move{s.row.Status, a.To}] = true
		}
	}
	for _, to := range append(payment.Statuses(), "REFUNDED") {
		for _, from := range payment.Statuses() {
			if guard := slices.Contains(payment.SettleFrom(to), from); guard != made[move{from, to}] {
				t.Errorf("%s → %s: guard lets through %v, Decide makes it %v", from, to, guard, !guard)
			}
		}
	}
	for _, to := range payment.Statuses() {
		if got := payment.NeedsFence(to); got != (to == payment.Failed) {
			t.Errorf("a move to %s needs the fence: %v", to, got)
		}
	}
}

func TestCrossingLook(t *testing.T) {
	t.Parallel()
	for _, actor := range payment.Actors() {
		for _, to := range payment.Statuses() {
			want := time.Duration(0)
			if to == payment.Paid && actor != payment.ByConfirm {
				want = 2 * time.Minute
			}
			if got := payment.CrossingLook(actor, to); got != want {
				t.Errorf("%s to %s: %v, want %v", actor, to, got, want)
			}
		}
	}
}
