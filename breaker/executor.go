package breaker

import (
	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/common"
	"github.com/failsafe-go/failsafe-go/policy"
)

// executor runs calls for failsafe-go. It overrides Apply as a whole: the hooks of BaseExecutor
// (PreExecute, PostExecute) have no place to carry a permit from one to the other and are not
// reached by a panic.
type executor[R any] struct {
	policy.BaseExecutor[R]
	breaker *Breaker[R]
}

var _ policy.Executor[any] = (*executor[any])(nil)

func newExecutor[R any](b *Breaker[R]) *executor[R] {
	e := &executor[R]{breaker: b}
	e.BaseExecutor.Executor = e
	return e
}

// ToExecutor makes the breaker a [failsafe.Policy]. The same executor serves every execution.
func (b *Breaker[R]) ToExecutor(_ R) any { return b.executor }

// ResultAgnostic marks that the breaker never changes a result, so that a Breaker[any] can be
// composed with executors of any result type.
func (b *Breaker[R]) ResultAgnostic() {}

// IsFailure says whether the breaker counts a result as a failure.
func (e *executor[R]) IsFailure(result R, err error) bool {
	return e.breaker.Classify(result, err) == Failure
}

// Apply makes the call under a permit that comes back however the call ends.
func (e *executor[R]) Apply(inner func(failsafe.Execution[R]) *common.PolicyResult[R]) func(failsafe.Execution[R]) *common.PolicyResult[R] {
	return func(exec failsafe.Execution[R]) *common.PolicyResult[R] {
		return e.breaker.run(exec, inner)
	}
}

func (b *Breaker[R]) run(exec failsafe.Execution[R], inner func(failsafe.Execution[R]) *common.PolicyResult[R]) *common.PolicyResult[R] {
	p, refusal := b.core.admit(exec.Context())
	if refusal != nil {
		return &common.PolicyResult[R]{Error: refusal, Done: true}
	}
	outcome := Ignored // stands if the call panics
	defer func() { b.core.finish(p, outcome) }()
	result := inner(exec)
	outcome = b.Classify(result.Result, result.Error)
	return mark(result, outcome)
}

// mark tells outer layers what this policy thinks of the result; of an ignored one it thinks nothing.
func mark[R any](result *common.PolicyResult[R], outcome Outcome) *common.PolicyResult[R] {
	switch {
	case outcome == Failure:
		return result.WithFailure()
	case outcome == Success && !(result.Done && result.Success):
		return result.WithDone(true, true)
	}
	return result
}
