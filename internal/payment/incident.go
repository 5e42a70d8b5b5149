package payment

import "time"

// IncidentKind names a doubt that a machine may not decide.
type IncidentKind string

// The incident kinds; all but DeadNotice are about money.
const (
	UnknownOutcome  IncidentKind = "unknown_outcome"
	Mismatch        IncidentKind = "mismatch"
	CancelFailed    IncidentKind = "cancel_failed"
	UnexpectedState IncidentKind = "unexpected_state"
	OrphanApproval  IncidentKind = "orphan_approval"
	DeadNotice      IncidentKind = "dead_notice"
)

// IncidentKinds lists every kind.
func IncidentKinds() []IncidentKind {
	return []IncidentKind{UnknownOutcome, Mismatch, CancelFailed, UnexpectedState, OrphanApproval, DeadNotice}
}

// Money reports whether an open incident of the kind is a box of the ledger identity.
func (k IncidentKind) Money() bool { return k != DeadNotice }

// IncidentState is whether an incident waits for somebody.
type IncidentState string

// The states; AllIncidents is for a filter alone.
const (
	IncidentOpen     IncidentState = "open"
	IncidentResolved IncidentState = "resolved"
	AllIncidents     IncidentState = "all"
)

// IncidentAction is what is decided about the money of an incident.
type IncidentAction string

// The actions. ResolveSettled is the machine's own: the cause went away, and resolved_by names the actor.
const (
	ResolveAccept   IncidentAction = "accept"
	ResolveGiveBack IncidentAction = "give_back"
	ResolveNotOurs  IncidentAction = "not_ours"
	ResolveSettled  IncidentAction = "settled"
)

// IncidentActions lists every action.
func IncidentActions() []IncidentAction {
	return []IncidentAction{ResolveAccept, ResolveGiveBack, ResolveNotOurs, ResolveSettled}
}

// Asked reports whether an operator may ask for the action at all.
func (a IncidentAction) Asked() bool {
	return a == ResolveAccept || a == ResolveGiveBack || a == ResolveNotOurs
}

// Incident is a doubt that a machine may not decide. One is open per paymentKey and kind; none is ever deleted.
type Incident struct {
	ID         int64
	Kind       IncidentKind
	OrderID    string
	PaymentKey string
	OpenedAt   time.Time
	// ResolvedAt is zero while the incident is open.
	ResolvedAt time.Time
	// ResolvedBy is the name of an operator's key or, with ResolveSettled, an Actor.
	ResolvedBy string
	// Action is empty if a note alone closed it.
	Action IncidentAction
	Note   string
	// Evidence is a JSON object, as it was kept when the incident was opened; nil if nothing was seen.
	Evidence []byte
}

// State is open until the incident is resolved.
func (i Incident) State() IncidentState {
	if i.ResolvedAt.IsZero() {
		return IncidentOpen
	}
	return IncidentResolved
}

// IncidentFilter asks for a page of incidents, the newest first. Empty fields do not narrow it.
type IncidentFilter struct {
	State   IncidentState
	Kind    IncidentKind
	OrderID string
	// Before is the id of the last incident of the page before; 0 begins at the newest.
	Before int64
	// Limit is the most incidents of the page.
	Limit int
}

// ResolveIncident is an operator's word on one incident.
type ResolveIncident struct {
	ID int64
	// Note says why; it is kept with the incident.
	Note string
	// Action is empty for a note alone.
	Action IncidentAction
	// By is the name of the operator's key.
	By string
}

// Remedy is what becomes of the payment when an incident is resolved.
type Remedy string

// The remedies.
const (
	// RemedyNone resolves the incident and touches nothing else.
	RemedyNone Remedy = "none"
	// RemedyAmount makes Toss's total the payment's amount; recovery settles the rest.
	RemedyAmount Remedy = "amount"
	// RemedyCancel stores a cancel of the balance; recovery finishes it.
	RemedyCancel Remedy = "cancel"
	// RemedyFail ends an unfinished payment as FAILED with FailMismatch and lets its order go.
	RemedyFail Remedy = "fail"
	// RemedyAdopt takes an approval that we do not know as PENDING: recovery makes it PAID.
	RemedyAdopt Remedy = "adopt"
	// RemedyReturn takes it as FAILED: recovery gives the money back.
	RemedyReturn Remedy = "return"
	// RemedyRetry forgets the refusal of a cancel: recovery begins a new one.
	RemedyRetry Remedy = "retry"
)

// Remedy is the rule which action is allowed for an incident of the kind, by what Toss was seen to say and by the
// payment as it is now (nil: it is not here). A refusal has no remedy, but a reason that is safe to show.
func (a IncidentAction) Remedy(kind IncidentKind, seen Observation, p *Payment) (r Remedy, refusal string) {
	switch {
	case a != "" && !a.Asked():
		return "", "must be accept, give_back or not_ours"
	case kind == Mismatch && p != nil:
		return a.ofMismatch(seen, p)
	case kind == OrphanApproval && p == nil:
		return a.ofOrphan(seen)
	case kind == CancelFailed && p != nil:
		return a.ofCancelFailed(p)
	case a != "" && kind == OrphanApproval:
		return "", "the payment is known by now: sync its order; a note closes the incident"
	case a != "":
		return "", "an incident of this kind takes none; a note closes it"
	default:
		return RemedyNone, ""
	}
}

const actionNeeded = "is required: accept, give_back or not_ours"

func (a IncidentAction) ofMismatch(seen Observation, p *Payment) (Remedy, string) { //nolint:cyclop // one table
	ours := seen.PaymentKey == p.PaymentKey && seen.OrderID == p.OrderID
	switch a {
	case ResolveAccept:
		switch {
		case !ours:
			return "", "accept: the approval is of another order; not_ours or give_back"
		case seen.Currency != p.Currency:
			return "", "accept: the currency differs; give_back"
		case seen.Total <= 0 || seen.Total == p.Amount:
			return "", "accept: the amount is not what differs; give_back"
		case !p.Status.Unfinished() && p.Status != Paid:
			return "", "accept: the payment is finished and not PAID"
		}
		return RemedyAmount, ""
	case ResolveGiveBack:
		switch {
		case seen.PaymentKey != p.PaymentKey:
			return "", "give_back: the approval has another paymentKey; not_ours"
		case seen.Balance <= 0:
			return "", "give_back: the evidence shows no balance"
		case p.Status == Canceled:
			return "", "give_back: the payment is CANCELED already"
		}
		return RemedyCancel, ""
	case ResolveNotOurs:
		switch {
		case ours:
			return "", "not_ours: paymentKey and orderId are ours; accept or give_back"
		case p.Status.Unfinished():
			return RemedyFail, ""
		}
		return RemedyNone, ""
	default:
		return "", actionNeeded
	}
}

func (a IncidentAction) ofOrphan(seen Observation) (Remedy, string) {
	whole := seen.OrderID != "" && seen.Currency != "" && seen.Total > 0
	switch {
	case a == "":
		return "", actionNeeded
	case a == ResolveNotOurs:
		return RemedyNone, ""
	case !whole:
		return "", "the evidence names no order, amount or currency; not_ours"
	case a == ResolveAccept:
		return RemedyAdopt, ""
	default:
		return RemedyReturn, ""
	}
}

func (a IncidentAction) ofCancelFailed(p *Payment) (Remedy, string) {
	switch {
	case a == "":
		return RemedyNone, ""
	case a != ResolveGiveBack:
		return "", "must be give_back, or absent"
	case p.Status == Paid || p.Status == Canceled:
		return "", "give_back: the payment stands; ask for a new cancel"
	case p.Status == Pending:
		return "", "give_back: the payment is undecided; resolve its mismatch"
	default:
		return RemedyRetry, ""
	}
}
