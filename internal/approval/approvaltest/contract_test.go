package approvaltest_test

import (
	"testing"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
)

// TestStoreContract holds the stand-in to what the real store is held to.
func TestStoreContract(t *testing.T) {
	t.Parallel()
	approvaltest.StoreContract(t, func(*testing.T) approval.Store { return approvaltest.NewStore() })
}
