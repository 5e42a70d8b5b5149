package notify

import (
	"context"
	"log/slog"

	"paymentd/internal/payment"
)

// logSender is the sink of whatever has no other. Its line names the order and nobody: no address, no
// member, no account.
type logSender struct{ log *slog.Logger }

// Send writes one line and cannot fail.
func (l logSender) Send(ctx context.Context, n payment.Notice) error {
	l.log.InfoContext(ctx, "notice",
		"notice", n.ID, "kind", n.Kind, "sequence", n.Sequence, "attempt", n.Attempts,
		"order_id", n.Payment.OrderID, "status", n.Payment.Status)
	return nil
}
