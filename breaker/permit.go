package breaker

import (
	"context"
	"sync/atomic"
)

// Permit is the right to make one call, from [Breaker.Acquire]. While half-open it is a lease that is
// taken back after MaxTrial.
type Permit struct {
	core *core
	pass pass
	done atomic.Bool
}

// Done ends the permit with the outcome of the call. Only the first Done counts, so that
// `defer permit.Done(Ignored)` is a safety net for every path that forgets.
func (p *Permit) Done(outcome Outcome) {
	if p.done.CompareAndSwap(false, true) {
		p.core.finish(p.pass, outcome)
	}
}

type backgroundKey struct{}

// Background marks calls made with ctx as background work: while half-open they get at most one
// trial of a generation, and never the last one that is left unless HalfOpenCalls is 1. Where no other
// caller came for OpenFor they get the remaining ones too, one at a time.
func Background(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

func isBackground(ctx context.Context) bool {
	return ctx != nil && ctx.Value(backgroundKey{}) != nil
}
