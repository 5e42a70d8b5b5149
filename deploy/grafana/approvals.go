package main

// failures are the answers that did not tell the buyer what became of the payment, or could not take it; the same as in
// the alert PaymentsFailing (deploy/prometheus/rules/paymentd.yml).
const (
	failures = `result=~"pending_unknown|pending_running|pending_unavailable|pg_unavailable|busy|db_unavailable|db_failed|gateway_misconfigured"`
	base     = `result=~"pending_unknown|pending_running|pending_unavailable|pg_unavailable|busy|db_unavailable|db_failed|gateway_misconfigured|approved|awaiting_deposit|declined"`
	confirm  = "paymentd_confirm_total"
	gateway  = "paymentd_gateway_duration_seconds"
	answered = "paymentd_confirm_duration_seconds"
)

func approvals() dashboard {
	approved, sent := with(`result="approved"`), with(`op="confirm",outcome="approved"`)
	whole := perSecond(answered+"_sum", approved) + " / " + perSecond(answered+"_count", approved)
	theirs := perSecond(gateway+"_sum", sent) + " / " + perSecond(gateway+"_count", sent)
	return dashboard{
		title: "paymentd 1: approvals",
		about: "**Can buyers pay, and how long do they wait?** The shop's checkout calls `POST /payments/confirm` once per order; paymentd asks the payment " +
			"gateway (Toss) and answers. If something is red or odd here, page 2 (resilience) tells whether the gateway is sick, page 3 (money) whether anything is left over.",
		panels: []panel{
			{kind: number, width: 6, unit: "reqps", title: "Confirms answered per second", about: "Every answer to a confirm counts once, good or bad.",
				queries: []query{{perSecond(confirm, only), "confirms"}}},
			{kind: number, width: 6, unit: "percentunit", title: "What share of the confirms fails?", change: limits(0.01, 0.2),
				about: "Failed means that the buyer did not learn what became of the payment, or that it could not be taken. A declined card is an answer and no failure. " +
					"Above 20 % for a minute the alert PaymentsFailing fires.",
				queries: []query{{perSecond(confirm, with(failures)) + " / " + perSecond(confirm, with(base)), "failed"}}},
			{kind: number, width: 6, unit: "s", title: "How long does a buyer wait for an approval?", change: limits(3, 10),
				about:   "95 of 100 approved confirms were answered within this time, most of which is the gateway's.",
				queries: []query{{answerQuantile("0.95", approved), "p95"}}},
			{kind: number, width: 6, unit: "s", title: "How much of the wait is our own?", change: limits(0.1, 0.5),
				about:   "Mean time of an approved confirm minus the mean time of its call at the gateway: database, queues and computing of paymentd.",
				queries: []query{{whole + " - " + theirs, "own"}}},
			{kind: bars, width: 12, unit: "reqps", title: "What are buyers told?",
				about: "Answers per second by result. approved, declined and replayed are normal; pending_… = answered 202 and settled later; pg_unavailable and busy = refused " +
					"before anything was charged; db_… = our database.",
				queries: []query{{perSecondBy("result", confirm, only), "{{result}}"}}},
			{kind: bars, width: 12, unit: "reqps", title: "Which HTTP statuses are answered?",
				about:   "All routes of the public door together. 4xx is the caller's doing (a declined card is 402), 5xx ours or the gateway's.",
				queries: []query{{perSecondBy("code", "paymentd_http_requests_total", with(`route!~"/metrics|/livez|/readyz|/debug.*"`)), "{{code}}"}}},
			{kind: lines, width: 12, unit: "s", title: "How long do callers wait for an answer?",
				about: "Half, 95 and 99 of 100 confirms were answered within these times, all results together. Nobody waits longer than ANSWER_WITHIN (10 s): then the answer is 202.",
				queries: []query{
					{answerQuantile("0.5", only), "half"}, {answerQuantile("0.95", only), "95 of 100"}, {answerQuantile("0.99", only), "99 of 100"},
				}},
			{kind: lines, width: 12, unit: "s", title: "Whose time is it: the gateway's or ours?",
				about: "Mean of approved confirms: the whole wait, the part at the gateway, and the rest, which is ours. When the whole grows, look which of the two grows with it.",
				queries: []query{
					{whole, "whole"}, {theirs, "gateway"}, {whole + " - " + theirs, "own"},
				}},
			{kind: bars, width: 12, unit: "reqps", title: "What does the gateway say to confirms?",
				about: "Tries per second by what they told. unknown = reached and no usable answer (the payment is looked up later); unavailable = never reached; " +
					"misconfigured = Toss refuses our key.",
				queries: []query{{perSecondBy("outcome", "paymentd_gateway_attempts_total", with(`op="confirm"`)), "{{outcome}}"}}},
			{kind: lines, width: 12, unit: "s", title: "How long does the gateway take?",
				about:   "95 of 100 calls ended within this time: confirm moves money, lookup asks what became of a payment, cancel gives money back.",
				queries: []query{{quantileBy("op", "0.95", gateway, only), "{{op}}"}}},
			{kind: bars, width: 12, unit: "reqps", title: "What do payments become, and who brings the news?",
				about:   "Moves per second by the new state and its bringer. confirm is the caller's own request; recovery, sync and webhook settle what was left over.",
				queries: []query{{perSecondBy("status, actor", "paymentd_settled_total", only), "{{status}} by {{actor}}"}}},
			{kind: lines, width: 12, unit: "s", title: "Do the other routes stay fast?",
				about:   "95 of 100 requests of each route were answered within this time. Reads must stay fast while the gateway is slow.",
				queries: []query{{quantileBy("route", "0.95", "paymentd_http_duration_seconds", with(`route!~"/metrics|/livez|/readyz|/debug.*"`)), "{{route}}"}}},
		},
	}
}
