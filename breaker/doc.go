// Package breaker is a circuit breaker policy for failsafe-go that tells the truth about a sick
// dependency. It composes with every other failsafe-go policy and imports nothing but failsafe-go
// and the standard library.
//
// # Rules
//
// Closed: the last Window results are kept. When at least MinCalls of them exist and failures ÷
// calls ≥ FailureRate, the breaker opens. Every result is looked at, so a success that completes
// MinCalls can open it too.
//
// Open: every call is refused with an [OpenError] for OpenFor. Then the breaker becomes half-open
// by itself: a timer tells the listener, and [Breaker.State], [Breaker.Snapshot] and [Breaker.Peek]
// see it although nobody asks for a permit.
//
// Half-open: at most HalfOpenCalls trials are admitted. As soon as failures ÷ HalfOpenCalls ≥
// FailureRate the rate can no longer fall below the threshold and the breaker opens again. It closes
// only when all HalfOpenCalls trials have ended below the threshold, with an empty window.
//
// Forced open: an operator called [Breaker.ForceOpen]. Every call is refused until
// [Breaker.Release], which goes to half-open, never straight to closed: the dependency has to prove
// itself with trials.
//
// # Outcomes
//
// A call ends as success, failure or ignored ([Breaker.Classify]). Ignored are errors that say
// Ignored() bool (found with errors.As, so anywhere in the chain), above all refusals by inner
// layers, and whatever Config.IsIgnored names: they say nothing about the dependency. An ignored
// outcome counts nowhere and gives its permit back. [OpenError] is ignored itself, so breakers can be
// stacked.
//
// A panic (or runtime.Goexit) in the call is ignored too: the permit comes back, the panic goes on.
//
// # Permits are leases
//
// A result belongs to the generation of its permit; every transition begins a new generation. What
// comes back from an earlier one is dropped and counted: slow calls from before an outage cannot
// close a half-open breaker. A trial that has not ended after MaxTrial loses its permit to the next
// caller, and its late result is dropped as well. MaxTrial must therefore be longer than the longest
// honest call.
//
// # Background work
//
// A call under [Background] (a recovery job, a replay) is admitted like any other while the breaker
// is closed. While half-open it gets at most one of the HalfOpenCalls trials, and never the last one
// that is left unless there is only one at all: the rest is for callers with somebody waiting. If no
// such caller came for OpenFor, background work gets the remaining trials too, one at a time, so that
// an idle service closes again.
//
// # Differences from resilience4j
//
// The words and the count-based window are the same. Different are: half-open re-opens at the first
// moment when the outcome is certain instead of after the last trial; results of an earlier state are
// dropped; permits of hung trials come back; a forced-open breaker is released into half-open; there
// is no time-based window and no slow-call rate.
package breaker
