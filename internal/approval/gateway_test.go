package approval_test

import (
	"context"
	"log/slog"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// outside is a gateway whose breaker opened after the first try.
type outside struct{ *approvaltest.Gateway }

func (*outside) Confirm(context.Context, approval.ConfirmCall) []payment.Answer {
	return []payment.Answer{
		{Kind: payment.KindFault}, {Kind: payment.KindRefused, Refuser: payment.RefusedByBreaker},
	}
}

// asking is a gateway that asks for the next key after last.
type asking struct {
	*approvaltest.Gateway
	last payment.Answer
	key  string
	send bool
}

func (g *asking) Confirm(ctx context.Context, c approval.ConfirmCall) []payment.Answer {
	g.key, g.send, _ = c.Next(ctx, g.last)
	return []payment.Answer{g.last}
}
