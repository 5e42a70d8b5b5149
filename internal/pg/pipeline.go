package pg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/common"
	"github.com/failsafe-go/failsafe-go/retrypolicy"

	"paymentd/breaker"
	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

type (
	// answer goes by pointer: by value every layer would keep room for a few on the stack of a confirm that waits.
	answer    = *payment.Answer
	execution = failsafe.Execution[answer]
	result    = common.PolicyResult[answer]
	run       = func(execution) *result
)

// step is a failsafe-go policy made of its one function.
type step func(inner run) run

// ToExecutor makes the step a failsafe.Policy.
func (s step) ToExecutor(answer) any { return s }

// Apply makes the step its own executor.
func (s step) Apply(inner run) run { return s(inner) }

// ended is the error by which a layer of ours ends a sequence before anything was sent. Its answer is one more
// answer heard, unless its Kind is empty. It tells nothing about Toss; but the try before it did, and with the
// retry inside the breaker that one is the result of the sequence. Otherwise a busy limiter would hide a sick
// gateway from the breaker by refusing every second try.
type ended struct {
	answer payment.Answer
	after  *payment.Answer
}

func refuse(by payment.Refuser, retryAfter time.Duration, cause error) *ended {
	return &ended{answer: payment.Answer{
		Kind: payment.KindRefused, Refuser: by, RetryAfter: retryAfter, Err: cause,
		Observation: payment.Observation{Sighting: payment.SeenNoAnswer},
	}}
}

// Error names the layer.
func (e *ended) Error() string {
	if e.answer.Kind == payment.KindRefused {
		return fmt.Sprintf("refused by the %s", e.answer.Refuser)
	}
	return "ended by the key rule"
}

// Ignored is true unless a try of the same sequence was heard before.
func (e *ended) Ignored() bool { return e.after == nil }

func (e *ended) result() *result {
	return &result{Result: &e.answer, Error: e, Done: true}
}

// sequence is one confirm on its way through the policies. The answers are kept here, outside of them, so that
// no policy can throw an approval away.
type sequence struct {
	ctx     context.Context
	call    approval.ConfirmCall
	request request // its key is that of the next try
	begun   int     // tries begun, refused ones included
	answers []payment.Answer
}

func (s *sequence) hear(a answer) { s.answers = append(s.answers, *a) }

func (s *sequence) last() answer { return &s.answers[len(s.answers)-1] }

// pipeline holds what all confirms share.
type pipeline struct {
	retry    retrypolicy.RetryPolicy[answer]
	outside  bool
	limiter  *limiter
	rateWait time.Duration
	bulkhead *bulkhead
	breaker  *breaker.Breaker[answer] // nil: off
}

func newPipeline(o Options, m *metrics) (*pipeline, error) {
	p := &pipeline{
		retry:    newRetry(o.Retry),
		outside:  o.Retry.Place == Outside,
		limiter:  newLimiter(o.Rate.PerSecond, o.Rate.Burst),
		rateWait: o.Rate.Wait,
		bulkhead: newBulkhead(o.Bulkhead, m),
	}
	if o.Breaker.Window == 0 {
		return p, nil
	}
	b, err := breaker.New(breaker.Config[answer]{
		Window:        o.Breaker.Window,
		MinCalls:      o.Breaker.MinCalls,
		FailureRate:   o.Breaker.FailureRate,
		OpenFor:       o.Breaker.OpenFor,
		HalfOpenCalls: o.Breaker.HalfOpenCalls,
		MaxTrial:      o.maxTrial(),
		IsIgnored:     func(a answer, err error) bool { return deciding(a, err) == breaker.Ignored },
		IsFailure:     func(a answer, err error) bool { return deciding(a, err) == breaker.Failure },
		OnTransition:  m.transition,
		OnResult:      m.breakerResult,
	})
	p.breaker = b
	return p, err
}

// deciding is the verdict of the last try of a sequence; what ended without an answer says nothing of Toss.
func deciding(a answer, err error) breaker.Outcome {
	if e, ok := errors.AsType[*ended](err); ok && e.after != nil {
		a = e.after
	}
	if a == nil {
		return breaker.Ignored
	}
	return verdict(*a)
}

// newRetry retries by kind, never by text: what it does not name ends the sequence, refusals above all.
func newRetry(o Retry) retrypolicy.RetryPolicy[answer] {
	var kinds []payment.Kind
	for _, cause := range o.On {
		switch cause {
		case CauseConnect:
			kinds = append(kinds, payment.KindNotConnected)
		case CauseReset:
			kinds = append(kinds, payment.KindReset)
		case Cause5xx:
			kinds = append(kinds, payment.KindFault)
		}
	}
	return retrypolicy.NewBuilder[answer]().
		HandleIf(func(a answer, err error) bool { return err == nil && slices.Contains(kinds, a.Kind) }).
		WithMaxRetries(o.Max).
		WithDelay(o.Delay).
		WithJitterFactor(0.5).
		ReturnLastFailure().
		Build()
}

// compose is the whole order of the pipeline:
//
//	inside:  breaker( retry( key rule( limiter( bulkhead( call )))))
//	outside: retry( key rule( breaker( limiter( bulkhead( call )))))
//
// It runs on a context that cannot end, because failsafe-go puts the context's error in the place of an answer
// when it ends; waiting and sending obey the caller's.
func (p *pipeline) compose(s *sequence) failsafe.Executor[answer] {
	policies := []failsafe.Policy[answer]{
		p.retry, p.keyRule(s), p.limiter.policy(s.ctx, p.rateWait), p.bulkhead.policy(s.ctx),
	}
	if p.breaker != nil {
		place := 0
		if p.outside {
			place = 2
		}
		policies = slices.Insert(policies, place, failsafe.Policy[answer](p.breaker))
	}
	return failsafe.With(policies...).WithContext(context.WithoutCancel(s.ctx))
}

// keyRule asks before try 2 and later which key to send, or whether to send at all.
func (p *pipeline) keyRule(s *sequence) step {
	return func(inner run) run {
		return func(exec execution) *result {
			s.begun++
			if s.begun == 1 {
				return inner(exec)
			}
			before := s.last()
			if stop := p.next(s); stop != nil {
				stop.after = before
				return stop.result()
			}
			r := inner(exec)
			if e, ok := errors.AsType[*ended](r.Error); ok {
				e.after = before
			}
			return r
		}
	}
}

// next takes the next key, or says why there is none.
func (p *pipeline) next(s *sequence) *ended {
	if p.outside && p.breaker != nil {
		// No lookup and no stored send for a try that the breaker would refuse.
		if err := p.breaker.Peek(); err != nil {
			return refusedByBreaker(err)
		}
	}
	if s.call.Next == nil {
		if payment.KeyStepAfter(*s.last()) != payment.KeepKey {
			return &ended{}
		}
		return nil
	}
	key, send, heard := s.call.Next(s.ctx, *s.last())
	if !send {
		return &ended{answer: heard}
	}
	s.request.key = key
	return nil
}

// refusedByBreaker turns the breaker's refusal into ours.
func refusedByBreaker(err error) *ended {
	after := time.Second // half-open without a trial left, or forced open: nobody knows
	if open, ok := errors.AsType[*breaker.OpenError](err); ok && open.RetryAfter > 0 {
		after = open.RetryAfter
	}
	return refuse(payment.RefusedByBreaker, after, err)
}
