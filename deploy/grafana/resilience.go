package main

// breakerState is 0 closed, 1 half open, 2 open, 3 forced open.
const breakerState = `max by (instance) (0 * paymentd_breaker_state{instance=~"$instance",state="closed"}` +
	` or paymentd_breaker_state{instance=~"$instance",state="half_open"}` +
	` or 2 * paymentd_breaker_state{instance=~"$instance",state="open"}` +
	` or 3 * paymentd_breaker_state{instance=~"$instance",state="forced_open"})`

func resilience() dashboard {
	refused := with(`result=~"pg_unavailable|busy|pending_unavailable"`)
	return dashboard{
		title: "paymentd 2: resilience",
		about: "**Is the gateway sick, and does paymentd shield the shop from it?** The breaker stops sending when too many calls fail, and tries again by itself. " +
			"Limiter and bulkhead keep us from asking too much of a gateway that is well. A refused buyer was not charged.",
		panels: []panel{
			{kind: timeline, width: 24, unit: "none", title: "Is the breaker open?", change: words,
				about: "closed = calls go to the gateway; open = they are refused at once, because too many failed; half open = a few trials decide; " +
					"forced open = an operator switched it off. The alert BreakerOpen fires within 45 s.",
				queries: []query{{breakerState, "{{instance}}"}}},
			{kind: bars, width: 12, unit: "short", title: "When did the breaker change its state?",
				about:   "Moves between its states. closed → open → half_open → closed is one outage from beginning to end.",
				queries: []query{{"sum by (from, to) (increase(paymentd_breaker_transitions_total" + only + "[$__rate_interval])) > 0", "{{from}} → {{to}}"}}},
			{kind: bars, width: 12, unit: "cps", title: "What does the breaker count?",
				about: "success and failure decide about its state. ignored = our own refusals and wrong keys; dropped = ended after the state had changed; " +
					"refused = not sent because it was open.",
				queries: []query{{perSecondBy("result", "paymentd_breaker_results_total", only), "{{result}}"}}},
			{kind: bars, width: 12, unit: "reqps", title: "Who refuses confirms?",
				about:   "breaker = the gateway is sick; limiter = more than RATE_LIMIT per second; bulkhead = more than BULKHEAD at the gateway at once. All answer 503, or 202 where refused ones are kept.",
				queries: []query{{perSecondBy("by", "paymentd_refused_total", only), "{{by}}"}}},
			{kind: lines, width: 12, unit: "s", title: "Do refused callers hear it at once?",
				about:   "95 of 100 refused confirms were answered within this time. With the breaker open it is milliseconds; the first refusals of an outage wait for retries.",
				queries: []query{{quantileBy("result", "0.95", answered, refused), "{{result}}"}}},
			{kind: lines, width: 12, unit: "short", title: "How many confirms are at the gateway now?",
				about: "in flight against the setting BULKHEAD (200), and those that wait for a place. A line that climbs means that the gateway gets slower.",
				queries: []query{
					{"sum by (instance) (paymentd_bulkhead_in_flight" + only + ")", "in flight, {{instance}}"},
					{"sum by (instance) (paymentd_bulkhead_waiting" + only + ")", "waiting, {{instance}}"},
				}},
			{kind: lines, width: 12, unit: "reqps", title: "How many calls go to the gateway per second?",
				about:   "By kind of call. For confirm compare with RATE_LIMIT (30 per second and instance): near it the limiter makes callers wait and then refuses.",
				queries: []query{{"sum by (op) (rate(paymentd_gateway_attempts_total" + only + "[$__rate_interval]))", "{{op}}"}}},
			{kind: bars, width: 12, unit: "cps", title: "Do retries help?",
				about:   "Confirms that needed a second try. absorbed = it went well and the buyer noticed nothing; exhausted = it did not.",
				queries: []query{{perSecondBy("result", "paymentd_retry_sequences_total", only), "{{result}}"}}},
			{kind: bars, width: 12, unit: "cps", title: "Which calls fail?",
				about:   "Calls per second that brought no answer, by kind. unknown = sent and nothing usable heard; unavailable = never reached the gateway.",
				queries: []query{{perSecondBy("op, outcome", "paymentd_gateway_attempts_total", with(`outcome=~"unknown|unavailable|misconfigured"`)), "{{op}}: {{outcome}}"}}},
		},
	}
}

// words name the breaker's numbers.
func words(defaults object) {
	options := object{}
	for i, s := range []struct{ word, color string }{{"closed", "green"}, {"half open", "orange"}, {"open", "red"}, {"forced open", "purple"}} {
		options[string(rune('0'+i))] = object{"text": s.word, "color": s.color, "index": i}
	}
	defaults["mappings"] = []object{{"type": "value", "options": options}}
}
