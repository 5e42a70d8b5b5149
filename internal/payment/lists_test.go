package payment_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

// constants reads the string constants of a type from the sources, so that one that a list forgets is found.
func constants(t *testing.T, typeName string) []string {
	t.Helper()
	names, err := fs.Glob(os.DirFS("."), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			if id, ok := spec.Type.(*ast.Ident); ok && id.Name == typeName {
				value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				values = append(values, value)
			}
			return true
		})
	}
	slices.Sort(values)
	return values
}

func texts[T ~string](list []T) []string {
	all := make([]string, 0, len(list))
	for _, v := range list {
		all = append(all, string(v))
	}
	slices.Sort(all)
	return all
}

// TestListsAreWhole compares the lists with the constants and, where the contract names the set, with its words.
func TestListsAreWhole(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		list     []string
		contract string
	}{
		{"Status", texts(payment.Statuses()), "PENDING AWAITING_DEPOSIT PAID FAILED CANCELED"},
		{"Sighting", texts(payment.Sightings()), ""},
		{"Actor", texts(payment.Actors()), "confirm recovery sync webhook operator"},
		{
			"IncidentKind", texts(payment.IncidentKinds()),
			"mismatch cancel_failed unexpected_state orphan_approval unknown_outcome dead_notice",
		},
		{"IncidentAction", texts(payment.IncidentActions()), "accept give_back not_ours settled"},
		{"IncidentState", constants(t, "IncidentState"), "open resolved all"},
		{"Code", texts(payment.Codes()), "invalid_request unauthorized declined forbidden not_found method_not_allowed " +
			"order_conflict payment_canceled in_progress cancel_in_progress not_cancelable refund_account_required " +
			"idempotency_key_reused expired too_large unsupported_media_type member_rate_limited rate_limited internal " +
			"gateway_misconfigured pg_unavailable busy db_unavailable db_failed"},
		{"Result", texts(payment.Results()), "approved replayed awaiting_deposit declined expired pending_unknown " +
			"pending_running pending_unavailable pg_unavailable busy db_unavailable db_failed order_conflict payment_canceled " +
			"invalid_request member_rate_limited gateway_misconfigured internal"},
		{"Kind", texts(allKinds), ""},
		{
			"FailureCode", texts(failureCodes),
			"declined expired given_back canceled_at_gateway mismatch abandoned pg_unavailable busy gateway_misconfigured",
		},
		{"NoticeKind", constants(t, "NoticeKind"), "payment.paid payment.failed payment.canceled receipt"},
		{"Earlier", constants(t, "Earlier"), "none unknown"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(constants(t, test.name), test.list); diff != "" {
				t.Errorf("constants and list (-constants +list):\n%s", diff)
			}
			if test.contract == "" {
				return
			}
			want := strings.Fields(test.contract)
			slices.Sort(want)
			if diff := cmp.Diff(want, test.list); diff != "" {
				t.Errorf("contract and list (-contract +list):\n%s", diff)
			}
		})
	}
}

var failureCodes = []payment.FailureCode{
	payment.FailDeclined, payment.FailExpired, payment.FailGivenBack, payment.FailCanceledAtGateway, payment.FailMismatch,
	payment.FailAbandoned, payment.FailPGUnavailable, payment.FailBusy, payment.FailMisconfigured,
}

func TestReopens(t *testing.T) {
	t.Parallel()
	reopens := []payment.FailureCode{payment.FailPGUnavailable, payment.FailBusy, payment.FailMisconfigured}
	for _, code := range failureCodes {
		if got, want := (&payment.Failure{Code: code}).Reopens(), slices.Contains(reopens, code); got != want {
			t.Errorf("%s reopens: %v, want %v", code, got, want)
		}
	}
	if (*payment.Failure)(nil).Reopens() {
		t.Error("no failure reopens")
	}
}

func TestSightingOf(t *testing.T) {
	t.Parallel()
	words := []string{"READY", "IN_PROGRESS", "WAITING_FOR_DEPOSIT", "DONE", "PARTIAL_CANCELED", "CANCELED", "ABORTED", "EXPIRED"}
	for _, word := range words {
		if got := payment.SightingOf(word); string(got) != word {
			t.Errorf("%s is seen as %s", word, got)
		}
	}
	// Words of ours must not be taken from the wire: a DECLINED by Toss would fail a payment.
	for _, s := range payment.Sightings() {
		if !slices.Contains(words, string(s)) && payment.SightingOf(string(s)) != payment.SeenUnknownStatus {
			t.Errorf("%s from the wire is believed", s)
		}
	}
	for _, word := range []string{"", "done", "SETTLED"} {
		if got := payment.SightingOf(word); got != payment.SeenUnknownStatus {
			t.Errorf("%q is seen as %s", word, got)
		}
	}
}

func TestObservationPredicates(t *testing.T) {
	t.Parallel()
	money := []payment.Sighting{payment.SeenDone, payment.SeenPartlyCanceled, payment.SeenCanceled}
	for _, s := range payment.Sightings() {
		for _, balance := range productBalance {
			o := saw(s, balance)
			if got, want := o.Charged(), slices.Contains(money, s) && balance > 0; got != want {
				t.Errorf("%s with %d is charged: %v", s, balance, got)
			}
			if got, want := o.Returned(), slices.Contains(money[1:], s) && balance == 0; got != want {
				t.Errorf("%s with %d is returned: %v", s, balance, got)
			}
		}
	}
}

func TestSameAs(t *testing.T) {
	t.Parallel()
	p := row(payment.Paid, time.Minute)
	p.MemberID = "member-1"
	same := payment.Order{PaymentKey: "key-1", OrderID: "order-1", Amount: 15000, Currency: payment.KRW}
	tests := []struct {
		name   string
		change func(*payment.Order)
		want   bool
	}{
		{"the same", func(*payment.Order) {}, true},
		{"another member", func(o *payment.Order) { o.MemberID = "member-2" }, true},
		{"another address", func(o *payment.Order) { o.ReceiptEmail = "someone@example.com" }, true},
		{"another key", func(o *payment.Order) { o.PaymentKey = "key-2" }, false},
		{"another order", func(o *payment.Order) { o.OrderID = "order-2" }, false},
		{"another amount", func(o *payment.Order) { o.Amount++ }, false},
		{"another currency", func(o *payment.Order) { o.Currency = "JPY" }, false},
	}
	for _, test := range tests {
		o := same
		test.change(&o)
		if got := o.SameAs(p); got != test.want {
			t.Errorf("%s: duplicate %v, want %v", test.name, got, test.want)
		}
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	cause := errors.New("dial tcp: refused")
	e := &payment.Error{Code: payment.CodePGUnavailable, Public: "try again", Err: cause}
	if got, want := fmt.Sprint(e), "pg_unavailable: try again: dial tcp: refused"; got != want {
		t.Errorf("text is %q, want %q", got, want)
	}
	if !errors.Is(e, cause) {
		t.Error("the cause is lost")
	}
	if got := (&payment.Error{Code: payment.CodeBusy}).Error(); got != "busy" {
		t.Errorf("text is %q", got)
	}
}

// TestEndings: what is not said is "don't know".
func TestEndings(t *testing.T) {
	t.Parallel()
	var unsaid payment.Ending
	if unsaid != payment.MaybeApplied {
		t.Errorf("the zero ending is %q", unsaid)
	}
	want := []string{"maybe applied", "applied", "0 rows", "not applied"}
	for i, e := range []payment.Ending{payment.MaybeApplied, payment.Applied, payment.NoRows, payment.NotApplied} {
		if e.String() != want[i] {
			t.Errorf("ending %d is %q, want %q", i, e, want[i])
		}
	}
}
