package payment_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

//go:generate go test -count=1 -run ^TestStateMachineDoc$ . -update

var update = flag.Bool("update", false, "rewrite docs/state-machine.md")

// TestStateMachineDoc keeps docs/state-machine.md equal to what Decide does.
func TestStateMachineDoc(t *testing.T) {
	t.Parallel()
	name := filepath.Join("..", "..", "docs", "state-machine.md")
	want := stateMachine()
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	// A checkout on Windows may have turned the line ends.
	if diff := cmp.Diff(want, strings.ReplaceAll(string(got), "\r\n", "\n")); diff != "" {
		t.Errorf("docs/state-machine.md is stale, run make generate (-want +got):\n%s", diff)
	}
}

// axis is one thing beside state and sighting on which an action may depend.
type axis struct {
	set   func(s *situation, value int)
	label func(values []int) string
	size  int
}

// words makes the labels of an axis whose values have no order.
func words(labels ...string) func([]int) string {
	return func(values []int) string {
		var all []string
		for _, v := range values {
			all = append(all, labels[v])
		}
		return strings.Join(all, " or ")
	}
}

// ages are the bands between the limits; a limit itself belongs to the later band.
var ages = []struct {
	from time.Duration
	name string
}{
	{0, ""},
	{rules.ResendWithin, "`RESEND_WITHIN`"},
	{rules.SendWithin, "`SEND_WITHIN`"},
	{rules.Window + rules.Margin, "the end of the window"},
	{rules.UnknownIncidentAfter, "`UNKNOWN_INCIDENT_AFTER`"},
}

func ageLabel(values []int) string {
	first, next := values[0], values[len(values)-1]+1
	switch {
	case first == 0:
		return "before " + ages[next].name
	case next == len(ages):
		return "after " + ages[first].name
	default:
		return "after " + ages[first].name + ", before " + ages[next].name
	}
}

// axes stand in the order in which the conditions of a row are read.
var axes = []axis{
	{
		size: 2, label: words("maybe sent", "never sent"),
		set: func(s *situation, v int) { s.row.MaybeSent = v == 0 },
	},
	{
		size: len(ages), label: ageLabel,
		set: func(s *situation, v int) {
			p := row(s.row.Status, ages[v].from)
			s.row.ReservedAt, s.row.FirstSentAt, s.row.LastSentAt = p.ReservedAt, p.FirstSentAt, p.LastSentAt
		},
	},
	{
		size: 2, label: words("not overdue", "more than 24 h after its due date"),
		set: func(s *situation, v int) {
			s.row.VirtualAccount = awaiting([]time.Duration{0, 24*time.Hour + 1}[v]).VirtualAccount
		},
	},
	{
		size: 3, label: words("balance 0", "part of the balance left", "balance whole"),
		set: func(s *situation, v int) { s.saw.Balance = []payment.Amount{0, 5000, s.saw.Total}[v] },
	},
	{
		size: 3, label: words("as ordered", "differs from the order", "of another order"),
		set: func(s *situation, v int) {
			if v == 2 {
				s.saw = other(s.saw, "orderId")
			}
			if v == 1 {
				whole := s.saw.Balance == s.saw.Total
				s.saw = other(s.saw, "amount")
				if whole {
					s.saw.Balance = s.saw.Total
				}
			}
		},
	},
	{
		size: 2, label: words("the cancel is ours", "the cancel is not ours"),
		set: func(s *situation, v int) {
			s.saw.Cancels = []payment.GatewayCancel{{Reason: []string{ourReason, foreignReason}[v]}}
		},
	},
	{
		size: 2, label: words("it was paid", "nobody had paid"),
		set: func(s *situation, v int) { s.saw.ApprovedAt = []time.Time{time.Unix(1, 0), {}}[v] },
	},
	{
		size: 2, label: words("nothing returned before", "some returned before"),
		set: func(s *situation, v int) { s.row.CanceledAmount = payment.Amount(v) * 5000 },
	},
}

// outcomeRow is an action and the conditions under which it is taken.
type outcomeRow struct{ when, action string }

// collapse asks Decide over the axes that are left and merges the values that make no difference.
func collapse(s situation, left []axis) []outcomeRow {
	if len(left) == 0 {
		return []outcomeRow{{action: describe(s)}}
	}
	var branches [][]outcomeRow
	var values [][]int
	for v := range left[0].size {
		next := s
		left[0].set(&next, v)
		rows := collapse(next, left[1:])
		same := slices.IndexFunc(branches, func(b []outcomeRow) bool { return slices.Equal(b, rows) })
		if same >= 0 {
			values[same] = append(values[same], v)
			continue
		}
		branches, values = append(branches, rows), append(values, []int{v})
	}
	if len(branches) == 1 {
		return branches[0]
	}
	var all []outcomeRow
	for i, rows := range branches {
		for _, r := range rows {
			r.when = strings.TrimSuffix(left[0].label(values[i])+"; "+r.when, "; ")
			all = append(all, r)
		}
	}
	return all
}

// describe is the action of one situation in words.
func describe(s situation) string {
	a := s.decide()
	var b strings.Builder
	switch {
	case a.Do == payment.Settle && a.To == s.row.Status:
		b.WriteString("stay, record the amount returned")
	case a.Do == payment.Settle:
		fmt.Fprintf(&b, "→ %s", a.To)
	default:
		b.WriteString(string(a.Do))
	}
	if a.Failure != nil {
		fmt.Fprintf(&b, " `%s`", a.Failure.Code)
	}
	if a.Incident != "" {
		fmt.Fprintf(&b, ", incident `%s`", a.Incident)
	}
	if a.VerifyIn != 0 {
		b.WriteString(", second look after `VERIFY_AFTER`")
	}
	return fmt.Sprintf("%s | %s", b.String(), a.Reason)
}

const machineHead = `<!-- Generated from internal/payment by ` + "`make generate`" + `. Do not edit. -->

# State machine

Every move of a payment, as the pure function ` + "`payment.Decide`" + ` makes it, whoever brought the news. A test fails when this
page and the code differ.

`

const machineNotes = `
One edge is not a matter of news and not taken by ` + "`Decide`" + `: **reopen**, FAILED → PENDING. A confirm *call* with the same
paymentKey, orderId, amount and currency takes it if the failure is %s,
nothing can have reached Toss, there are no cancels, and nobody else holds the order.

The guard of the SQL statements (` + "`payment.SettleFrom`" + `); whatever else a row is in, a settle matches nothing:

| to | from | needs the fence |
|---|---|---|
%s
## What follows from what Toss says

"Stay" changes nothing, "wait" looks again later, "park" keeps the payment out of the due loop while its incident is open, "send"
sends the confirm by the key rule, "give back" cancels the balance at Toss, "cancel deposit" an unpaid virtual account. A live
confirm and a webhook leave "send" and "wait" to recovery. Ages count from the reservation or the last reopening; the window ends
at max(first send + ` + "`TOSS_WINDOW` + `TOSS_WINDOW_MARGIN`" + `, last send + 5 min).

` + "`NO_LOOKUP`" + `: Toss was not asked. ` + "`NO_ANSWER`" + `: no usable answer. ` + "`UNKNOWN_STATUS`" + `: a word that is not in Toss's documentation.
` + "`NOT_FOUND`" + `: 404 to a lookup. ` + "`DECLINED`" + `, ` + "`SESSION_GONE`" + `: the definite answers to a confirm. The others are Toss's status words.
`

// stateMachine renders the page.
func stateMachine() string {
	var b strings.Builder
	b.WriteString(machineHead)
	b.WriteString(diagram())
	var reopens []string
	for _, code := range failureCodes {
		if (&payment.Failure{Code: code}).Reopens() {
			reopens = append(reopens, "`"+string(code)+"`")
		}
	}
	last := len(reopens) - 1
	fmt.Fprintf(&b, machineNotes, strings.Join(reopens[:last], ", ")+" or "+reopens[last], guards())
	for _, status := range payment.Statuses() {
		fmt.Fprintf(&b, "\n### %s\n\n| Toss says | when | action | reason |\n|---|---|---|---|\n", status)
		b.WriteString(table(status))
	}
	return b.String()
}

// table has the rows of one state; sightings that call for the same share them.
func table(status payment.Status) string {
	var sightings [][]string
	var rows [][]outcomeRow
	for _, sighting := range payment.Sightings() {
		s := situation{row: row(status, 0), saw: full(sighting)}
		r := collapse(s, axes)
		same := slices.IndexFunc(rows, func(known []outcomeRow) bool { return slices.Equal(known, r) })
		if same >= 0 {
			sightings[same] = append(sightings[same], string(sighting))
			continue
		}
		sightings, rows = append(sightings, []string{string(sighting)}), append(rows, r)
	}
	var b strings.Builder
	for i, group := range rows {
		for _, r := range group {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", strings.Join(sightings[i], ", "), r.when, r.action)
		}
	}
	return b.String()
}

// diagram draws the moves that the whole product makes.
func diagram() string {
	type move struct{ from, to payment.Status }
	moves := map[move][]string{}
	for s := range product() {
		a := s.decide()
		m := move{s.row.Status, a.To}
		word := string(s.saw.Sighting)
		if s.saw.Sighting == payment.SeenNothing || payment.OpenForNextKey(seen(s.saw)) {
			word = "not finished in time"
		}
		if a.Do == payment.Settle && !slices.Contains(moves[m], word) {
			moves[m] = append(moves[m], word)
		}
	}
	var b strings.Builder
	b.WriteString("```mermaid\nstateDiagram-v2\n    [*] --> PENDING : reserve\n")
	for _, from := range payment.Statuses() {
		for _, to := range payment.Statuses() {
			if says := moves[move{from, to}]; len(says) > 0 {
				fmt.Fprintf(&b, "    %s --> %s : %s\n", from, to, strings.Join(says, ", "))
			}
		}
	}
	b.WriteString("    FAILED --> PENDING : reopen (by a confirm call alone)\n    PAID --> [*]\n    FAILED --> [*]\n    CANCELED --> [*]\n```\n")
	return b.String()
}

// seen is the lookup that shows an observation.
func seen(o payment.Observation) payment.Answer {
	if o.Sighting == payment.SeenNotFound {
		return payment.Answer{Kind: payment.KindNotFound}
	}
	return payment.Answer{Kind: payment.KindPayment, Observation: o}
}

func guards() string {
	var b strings.Builder
	for _, to := range payment.Statuses() {
		if from := payment.SettleFrom(to); len(from) > 0 {
			fence := "no"
			if payment.NeedsFence(to) {
				fence = "yes"
			}
			var all []string
			for _, s := range from {
				all = append(all, string(s))
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", to, strings.Join(all, ", "), fence)
		}
	}
	return b.String()
}
