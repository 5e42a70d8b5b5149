package loadtest_test

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"paymentd/loadtest"
)

// TestCeilingNeverChanges: a ratio "bare" is comparable only with others against the same file.
func TestCeilingNeverChanges(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		loadtest.Ceiling:       "682e6027974ff7d9",
		loadtest.CeilingTables: "6c15e628e0a7659c",
	} {
		sum := sha256.Sum256([]byte(text))
		if got := hex.EncodeToString(sum[:8]); got != want {
			t.Errorf("the file that begins with %.60q changed: sum %s, want %s", text, got, want)
		}
	}
}
