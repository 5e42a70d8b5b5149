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
	l.log.LogAttrs(ctx, slog.LevelInfo, "notice",
		slog.String("notice", n.ID), slog.String("kind", string(n.Kind)), slog.Int64("sequence", n.Sequence), slog.Int("attempt", n.Attempts),
		slog.String("order_id", n.Payment.OrderID), slog.String("status", string(n.Payment.Status)))
	return nil
}
