package payment_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"pgregory.net/rapid"

	"paymentd/internal/payment"
)

// TestKeyRule is the key rule of the design: nothing heard or 409 keeps the key, an error answer spends it, a
// request that runs at Toss forbids every key.
func TestKeyRule(t *testing.T) {
	t.Parallel()
	kept := map[payment.Kind]bool{
		payment.KindReset: true, payment.KindTimeout: true, payment.KindPanic: true, payment.KindKeyBusy: true,
		payment.KindNotConnected: true, payment.KindRefused: true,
	}
	for _, kind := range allKinds {
		want := payment.LookupThenNextKey
		switch {
		case kind == payment.KindProcessing:
			want = payment.LookupOnly
		case kept[kind]:
			want = payment.KeepKey
		}
		if got := payment.KeyStepAfter(heard(kind)); got != want {
			t.Errorf("after %s: step %d, want %d", kind, got, want)
		}
		if got := heard(kind).SpendsKey(); got == kept[kind] {
			t.Errorf("%s spends the key: %v", kind, got)
		}
	}
	// A kind that nobody thought of must not repeat a key that may replay an error, nor skip the lookup.
	if got := payment.KeyStepAfter(heard("new kind")); got != payment.LookupThenNextKey {
		t.Errorf("after a new kind: step %d, want a lookup", got)
	}
}

func TestOpenForNextKey(t *testing.T) {
	t.Parallel()
	for _, sighting := range payment.Sightings() {
		want := sighting == payment.SeenReady || sighting == payment.SeenInProgress
		if got := payment.OpenForNextKey(heardPayment(sighting)); got != want {
			t.Errorf("a lookup that shows %s: %v, want %v", sighting, got, want)
		}
	}
	for _, kind := range allKinds {
		want := kind == payment.KindNotFound
		if got := payment.OpenForNextKey(heard(kind)); got != want {
			t.Errorf("a lookup answered by %s: %v, want %v", kind, got, want)
		}
	}
}

func TestConfirmKey(t *testing.T) {
	t.Parallel()
	if got := payment.ConfirmKey("tgen_20260301", 3); got != "tgen_20260301:3" {
		t.Errorf("key is %q", got)
	}
	if got := len(payment.ConfirmKey(strings.Repeat("k", 200), 999)); got != 204 {
		t.Errorf("the longest key has %d characters, want 204", got)
	}
}

func TestCancelIDs(t *testing.T) {
	t.Parallel()
	shape := regexp.MustCompile(`^c-[a-z2-7]{26}$`)
	seen := map[string]bool{}
	for range 1000 {
		id := payment.NewCancelID()
		if !shape.MatchString(id) || seen[id] {
			t.Fatalf("cancel id %q: seen before %v", id, seen[id])
		}
		seen[id] = true
		if got := payment.CancelMark(payment.MarkedReason("why", id)); got != id {
			t.Fatalf("mark is %q, want %q", got, id)
		}
	}
	if got := payment.CancelKey("c-x", 2); got != "c-x-2" {
		t.Errorf("cancel key is %q", got)
	}
}

func TestMarkedReason(t *testing.T) {
	t.Parallel()
	const id = "c-abcdefghijklmnopqrstuvwxyz"
	const room = 200 - 31
	tests := []struct {
		name, reason, want string
	}{
		{"empty", "", " [" + id + "]"},
		{"short", "late", "late [" + id + "]"},
		{"Korean", "고객 변심", "고객 변심 [" + id + "]"},
		{"Korean, just fits", strings.Repeat("가", room), strings.Repeat("가", room) + " [" + id + "]"},
		{"Korean, one too long", strings.Repeat("가", room+1), strings.Repeat("가", room) + " [" + id + "]"},
		// Outside the basic plane a character counts twice where Toss may count; it is never cut in half.
		{"emoji", strings.Repeat("😀", room), strings.Repeat("😀", room/2) + " [" + id + "]"},
		{"somebody else's mark in it", "x [c-22222222222222222222222222]", "x [c-22222222222222222222222222] [" + id + "]"},
		{"two lines", "a\nb", "a\nb [" + id + "]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := payment.MarkedReason(test.reason, id)
			if got != test.want {
				t.Errorf("reason is %q, want %q", got, test.want)
			}
			if mark := payment.CancelMark(got); mark != id {
				t.Errorf("mark is %q", mark)
			}
			if !(payment.GatewayCancel{Reason: got}).Ours() {
				t.Error("not recognized as ours")
			}
		})
	}
}

func TestMarkedReasonFits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := payment.NewCancelID()
		reason := rapid.OneOf(
			rapid.StringOfN(rapid.RuneFrom([]rune("가나😀a ")), 150, 260, -1),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 400), func(b []byte) string { return string(b) }),
		).Draw(t, "reason")
		got := payment.MarkedReason(reason, id)
		if n := len(utf16.Encode([]rune(got))); n > 200 {
			t.Fatalf("%d UTF-16 units", n)
		}
		if n := utf8.RuneCountInString(got); n > 200 {
			t.Fatalf("%d characters", n)
		}
		if utf8.ValidString(reason) && !utf8.ValidString(got) {
			t.Fatal("cut in the middle of a character")
		}
		if !strings.HasPrefix(reason, strings.TrimSuffix(got, " ["+id+"]")) || payment.CancelMark(got) != id {
			t.Fatalf("%q does not lead back to the reason and the id", got)
		}
	})
}

func TestForeignReasons(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{
		"", "고객 변심", "[c-abcdefghijklmnopqrstuvwxyz]", "x [c-abcdefghijklmnopqrstuvwxyz] ", "x [c-abcdefghijklmnopqrstuvwxy]",
		"x [c-abcdefghijklmnopqrstuvwxyz2]", "x [c-ABCDEFGHIJKLMNOPQRSTUVWXYZ]", "x [c-abcdefghijklmnopqrstuvwxyz]\n",
		"x [c-abcdefghijklmnopqrstuvwxy1]",
	} {
		if mark := payment.CancelMark(reason); mark != "" {
			t.Errorf("%q has the mark %q", reason, mark)
		}
	}
}
