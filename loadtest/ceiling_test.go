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
		loadtest.Ceiling:       "2e6e1d91100fa700",
		loadtest.CeilingTables: "b5cc17b24b884b6d",
	} {
		sum := sha256.Sum256([]byte(text))
		if got := hex.EncodeToString(sum[:8]); got != want {
			t.Errorf("the file that begins with %.60q changed: sum %s, want %s", text, got, want)
		}
	}
}
