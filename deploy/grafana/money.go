package main

func money() dashboard {
	return dashboard{
		title: "paymentd 3: recovery and money",
		about: "**Is any payment left in doubt, and does every won have its place?** What the gateway did not answer for stays PENDING and is looked up until it is settled. " +
			"What a machine may not decide is an incident, for people. Figures read from the database are the same on every instance, so: max, never sum.",
		panels: []panel{
			{kind: number, width: 6, unit: "short", title: "Payments in doubt", change: limits(20, 200),
				about:   "PENDING: reserved, perhaps sent, no final word yet. Some are normal while buyers pay; after an outage the number falls to 0 without a hand.",
				queries: []query{{`max(paymentd_payments{status="PENDING"})`, "PENDING"}}},
			{kind: number, width: 6, unit: "s", title: "How old is the oldest of them?", change: limits(600, 1200),
				about:   "The gateway's own window ends after 10 minutes, so that every doubt should be settled after 20 minutes; then the alert OldestPending fires.",
				queries: []query{{"max(paymentd_oldest_pending_seconds)", "oldest"}}},
			{kind: number, width: 6, unit: "short", title: "Open incidents about money", change: limits(1, 1),
				about:   "Cases that a machine may not decide. docs/runbook.md, \"Open incidents\", says what to do for each kind.",
				queries: []query{{`sum(max by (kind) (paymentd_incidents_open{kind!="dead_notice"}))`, "open"}}},
			{kind: number, width: 6, unit: "s", title: "When did recovery last finish?", change: limits(60, 120),
				about:   "Seconds since some instance last found everything due worked off. It does so every few seconds; above 2 minutes the alert RecoveryNotRunning fires.",
				queries: []query{{"time() - max(paymentd_recovery_last_success_timestamp_seconds)", "ago"}}},
			{kind: lines, width: 12, unit: "short", title: "How many payments are unfinished?",
				about:   "PENDING = in doubt. AWAITING_DEPOSIT = a virtual account was issued and the buyer has days to pay into it, so that a number above 0 is normal.",
				queries: []query{{"max by (status) (paymentd_payments)", "{{status}}"}}},
			{kind: lines, width: 12, unit: "s", title: "How old does a doubt become?",
				about:   "Age of the oldest PENDING payment. It climbs during an outage and falls to 0 soon after; a line that climbs on is a payment that does not settle.",
				queries: []query{{"max(paymentd_oldest_pending_seconds)", "oldest PENDING"}}},
			{kind: bars, width: 12, unit: "cps", title: "What does recovery do?",
				about: "Payments looked at per second, by what came of it. paid and failed settle a doubt, waited looks again later, given_back returns money that may not be kept, " +
					"only error for minutes = the lookups fail.",
				queries: []query{{perSecondBy("action", "paymentd_recovery_total", only), "{{action}}"}}},
			{kind: lines, width: 12, unit: "s", title: "How long until a payment is final?",
				about:   "95 of 100 payments were PAID or FAILED within this time after their reservation, by who brought the news.",
				queries: []query{{quantileBy("actor", "0.95", "paymentd_settle_duration_seconds", only), "by {{actor}}"}}},
			{kind: lines, width: 12, unit: "short", title: "Which incidents are open?",
				about: "mismatch = the gateway approved something else than was ordered; cancel_failed = money could not be given back; orphan_approval = approved and unknown to us; " +
					"unknown_outcome = no answer for an hour; unexpected_state = see its evidence; dead_notice = a notice was given up.",
				queries: []query{{"max by (kind) (paymentd_incidents_open)", "{{kind}}"}}},
			{kind: lines, width: 12, unit: "short", title: "Do notices reach the shop and the buyers?",
				about:   "Notices that wait (queued) and those given up after 24 hours (dead). A queue that grows means that a receiver is down; no payment waits for it.",
				queries: []query{{"max by (state) (paymentd_notices)", "{{state}}"}}},
			{kind: bars, width: 12, unit: "cps", title: "What becomes of tries to deliver a notice?",
				about:   "Tries per second by receiver. failed ones are tried again with growing delays; superseded = the news was no longer true.",
				queries: []query{{perSecondBy("sink, result", "paymentd_notice_attempts_total", only), "{{sink}}: {{result}}"}}},
			{kind: text, width: 12, title: "Does every won have its place?",
				about: "The ledger identity has no metric, because it takes a reading of all payments at the gateway.",
				text: "Run **`paymentd audit`** daily: it compares what the gateway says was charged with PAID, returned, in doubt and incidents here, and ends with an error when a won is missing. " +
					"Its options and what to do about a finding: `docs/runbook.md`.\n\nBetween two audits *Open incidents about money* and *Payments in doubt* above must be 0 or explained."},
		},
	}
}
