package payment

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Approval is what Toss tells of one paymentKey that it ever approved, in whatever state it is now.
type Approval struct {
	PaymentKey string
	OrderID    string
	// Times is how often Toss took the money; more than once is a violation whatever was returned.
	Times int
	// Total is what Toss took, Canceled what it gave back of it.
	Total, Canceled Amount
}

// Balance is what Toss still holds of the approval.
func (a Approval) Balance() Amount { return a.Total - a.Canceled }

// LedgerRow is what our side knows of one paymentKey. A row with an empty Status stands for the incidents, open or
// resolved by hand, about a paymentKey that has no payment here (orphan_approval).
type LedgerRow struct {
	PaymentKey string
	OrderID    string
	Status     Status
	Amount     Amount
	// CanceledAmount counts for PAID and CANCELED rows.
	CanceledAmount Amount
	// MoneyIncident means that an incident of a money kind is open (IncidentKind.Money).
	MoneyIncident bool
	// DoneCancels means that a cancel of ours or a recorded foreign one is done.
	DoneCancels bool
	// ByHand means that an operator resolved an incident of a money kind (its action is not ResolveSettled): somebody
	// answers for an approval that is in no box of the machine's.
	ByHand bool
}

// Transaction is one line of Toss's reconciliation feed.
type Transaction struct {
	// Key is Toss's transactionKey.
	Key                 string
	PaymentKey, OrderID string
	// Status is SeenUnknownStatus also for a line whose amount cannot be read.
	Status   Sighting
	At       time.Time
	Currency Currency
	// Amount is above 0 for money taken, below 0 for money that went back.
	Amount Amount
}

// AuditRow is what an audit needs to know of one paymentKey on our side; an empty Status as in LedgerRow.
type AuditRow struct {
	LedgerRow
	Currency   Currency
	ApprovedAt time.Time
	ReservedAt time.Time
	UpdatedAt  time.Time
	// ReadAt is PostgreSQL's time when the row was read.
	ReadAt time.Time
}

// Box is where an approved paymentKey belongs.
type Box string

// The boxes of the ledger identity. A PENDING or AWAITING_DEPOSIT payment under an open incident is InBoxIncident:
// somebody looks after it, so it is no doubt that recovery has to empty. InBoxByHand is for what no other box takes and
// an operator answered for.
const (
	InBoxPaid     Box = "paid"
	InBoxReturned Box = "returned"
	InBoxIncident Box = "incident"
	InBoxDoubt    Box = "doubt"
	InBoxByHand   Box = "by_hand"
)

// Violation is one way in which the ledger identity is broken.
type Violation struct {
	PaymentKey string
	OrderID    string
	What       string
}

// Ledger is the result of CheckLedger. The sums are in minor units over all currencies; that they agree per
// paymentKey is checked too, so that two faults cannot cancel each other out.
type Ledger struct {
	// Approved counts the paymentKeys that Toss ever approved.
	Approved int
	// Paid, Returned, Incident, Doubt and ByHand count the paymentKeys in each box.
	Paid, Returned, Incident, Doubt, ByHand int
	// AtToss is Σ(total − cancelled) of all approvals.
	AtToss Amount
	// PaidSum is Σ(amount − canceledAmount) of the PAID rows.
	PaidSum Amount
	// IncidentSum, DoubtSum and ByHandSum are Σ balance at Toss of these boxes.
	IncidentSum, DoubtSum, ByHandSum Amount
	// Violations is empty if the identity holds.
	Violations []Violation
}

// Balanced reports whether Σ(total − cancelled) at Toss = Σ(amount − canceledAmount) of PAID + Σ balance of the
// boxes incident, doubt and by hand.
func (l Ledger) Balanced() bool { return l.AtToss == l.PaidSum+l.IncidentSum+l.DoubtSum+l.ByHandSum }

// Holds reports whether the ledger identity holds. A payment in doubt does not break it; after recovery Doubt is 0.
func (l Ledger) Holds() bool { return l.Balanced() && len(l.Violations) == 0 }

// String is the ledger in one line: boxes, sums, and the violations, of which it names at most five.
func (l Ledger) String() string {
	word, sign := "holds", "="
	if !l.Holds() {
		word = "BROKEN"
	}
	if !l.Balanced() {
		sign = "≠"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "ledger %s: %d approved, %d paid + %d returned + %d under incident + %d in doubt + %d by hand; money %d %s %d + %d + %d + %d; %d violations",
		word, l.Approved, l.Paid, l.Returned, l.Incident, l.Doubt, l.ByHand,
		l.AtToss, sign, l.PaidSum, l.IncidentSum, l.DoubtSum, l.ByHandSum, len(l.Violations))
	const shown = 5
	for i, v := range l.Violations {
		if i == shown {
			b.WriteString("; …")
			break
		}
		fmt.Fprintf(&b, "; %s (order %s): %s", v.PaymentKey, v.OrderID, v.What)
	}
	return b.String()
}

// CheckLedger computes the ledger identity (design note, "Ledger identity"): every paymentKey that Toss ever approved
// is in exactly one box, no paymentKey was approved twice, no order is charged twice net of returns, every PAID row
// is money at Toss, and the sums agree. What an operator answered for counts apart and is no second charge. Audit, tests
// and scenarios share it. Violations are sorted by paymentKey.
func CheckLedger(gateway []Approval, local []LedgerRow) Ledger {
	c := ledgerCheck{rows: map[string][]LedgerRow{}, ledger: Ledger{Approved: len(gateway)}}
	for _, row := range local {
		c.rows[row.PaymentKey] = append(c.rows[row.PaymentKey], row)
	}
	approved, charged := map[string]bool{}, map[string][]string{}
	for _, a := range gateway {
		if approved[a.PaymentKey] {
			c.violate(a, "listed twice by the gateway")
		}
		approved[a.PaymentKey] = true
		if box := c.place(a); a.Balance() > 0 && box != InBoxByHand {
			charged[a.OrderID] = append(charged[a.OrderID], a.PaymentKey)
		}
	}
	for _, row := range local {
		if row.Status != Paid {
			continue
		}
		c.ledger.PaidSum += row.Amount - row.CanceledAmount
		if !approved[row.PaymentKey] {
			c.violate(Approval{PaymentKey: row.PaymentKey, OrderID: row.OrderID}, "PAID here, never approved at the gateway")
		}
	}
	for order, keys := range charged {
		if len(keys) > 1 {
			slices.Sort(keys)
			c.violate(Approval{PaymentKey: keys[0], OrderID: order}, "order charged twice: "+strings.Join(keys, ", "))
		}
	}
	slices.SortFunc(c.ledger.Violations, func(v, w Violation) int {
		return strings.Compare(v.PaymentKey+"\x00"+v.What, w.PaymentKey+"\x00"+w.What)
	})
	return c.ledger
}

type ledgerCheck struct {
	rows   map[string][]LedgerRow
	ledger Ledger
}

func (c *ledgerCheck) violate(a Approval, what string) {
	c.ledger.Violations = append(c.ledger.Violations, Violation{PaymentKey: a.PaymentKey, OrderID: a.OrderID, What: what})
}

// place counts one approval in its box, which it returns, and names what is wrong with it.
func (c *ledgerCheck) place(a Approval) Box {
	c.ledger.AtToss += a.Balance()
	if a.Times > 1 {
		c.violate(a, fmt.Sprintf("approved %d times", a.Times))
	}
	var boxes []Box
	for _, row := range c.rows[a.PaymentKey] {
		if box := row.box(a); box != "" && !slices.Contains(boxes, box) {
			boxes = append(boxes, box)
		}
		if row.Status == Paid && row.Amount-row.CanceledAmount != a.Balance() {
			c.violate(a, fmt.Sprintf("PAID with %d here, %d at the gateway", row.Amount-row.CanceledAmount, a.Balance()))
		}
	}
	switch rows := c.rows[a.PaymentKey]; {
	case len(rows) == 0:
		c.violate(a, "in no box: unknown here")
		return ""
	case len(boxes) == 0:
		c.violate(a, fmt.Sprintf("in no box: %s here, balance %d at the gateway", rows[0].Status, a.Balance()))
		return ""
	case len(boxes) > 1 || len(rows) > 1:
		c.violate(a, fmt.Sprintf("in two boxes: %d rows, %v", len(rows), boxes))
	}
	c.count(boxes[0], a.Balance())
	return boxes[0]
}

// count adds an approval to the figures of its box.
func (c *ledgerCheck) count(box Box, balance Amount) {
	switch box {
	case InBoxPaid:
		c.ledger.Paid++
	case InBoxReturned:
		c.ledger.Returned++
	case InBoxIncident:
		c.ledger.Incident++
		c.ledger.IncidentSum += balance
	case InBoxDoubt:
		c.ledger.Doubt++
		c.ledger.DoubtSum += balance
	case InBoxByHand:
		c.ledger.ByHand++
		c.ledger.ByHandSum += balance
	}
}

// box is where a row puts its approval; empty means nowhere.
func (r LedgerRow) box(a Approval) Box {
	returned := a.Balance() == 0 && (r.Status == Canceled || (r.Status == Failed || r.Status == "") && r.DoneCancels)
	switch {
	case r.Status == Paid:
		return InBoxPaid
	case returned:
		return InBoxReturned
	case r.MoneyIncident:
		return InBoxIncident
	case r.Status.Unfinished():
		return InBoxDoubt
	case r.ByHand:
		return InBoxByHand
	default:
		return ""
	}
}
