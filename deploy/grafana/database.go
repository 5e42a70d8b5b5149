package main

func database() dashboard {
	const took = "paymentd_db_acquire_duration_seconds"
	return dashboard{
		title: "paymentd 4: database",
		about: "**Do requests wait for a database connection?** paymentd holds none while it waits for the gateway, so 10 connections serve hundreds of buyers. " +
			"Requests and background work (recovery, notices) have pools of their own, so that neither starves the other.",
		panels: []panel{
			{kind: lines, width: 12, unit: "short", title: "How many connections are in use?",
				about: "By pool, against the most that it may open (max). in use that stays at max means that every statement waits for another one.",
				queries: []query{
					{"sum by (pool, state) (paymentd_db_connections" + only + ")", "{{pool}}: {{state}}"}, {"sum by (pool) (paymentd_db_connections_max" + only + ")", "{{pool}}: max"},
				}},
			{kind: lines, width: 12, unit: "short", title: "How many callers wait for a connection?",
				about:   "0 is normal. Above 0 for a minute the alert PoolWaits fires: a slow or locked database, or too small a pool.",
				queries: []query{{"sum by (pool) (paymentd_db_acquire_waiting" + only + ")", "{{pool}}"}}},
			{kind: lines, width: 12, unit: "s", title: "How long do they wait?",
				about: "Half and 99 of 100 got a connection within this time, dialing included. Microseconds are normal.",
				queries: []query{
					{quantileBy("pool", "0.5", took, only), "{{pool}}: half"}, {quantileBy("pool", "0.99", took, only), "{{pool}}: 99 of 100"},
				}},
			{kind: bars, width: 12, unit: "cps", title: "Who gives up waiting?",
				about:   "Waits per second that reached DB_ACQUIRE_TIMEOUT (2 s). Confirms among them were answered 503 db_unavailable and nothing was charged.",
				queries: []query{{perSecondBy("pool", "paymentd_db_acquire_timeouts_total", only), "{{pool}}"}}},
			{kind: lines, width: 12, unit: "ops", title: "How often is a connection taken?",
				about:   "Per second and pool; an approved confirm takes one for each of its two statements.",
				queries: []query{{"sum by (pool) (rate(" + took + "_count" + only + "[$__rate_interval]))", "{{pool}}"}}},
			{kind: bars, width: 12, unit: "reqps", title: "Which answers are the database's fault?",
				about:   "Confirms per second answered db_unavailable (nothing was reserved, nothing was sent) and db_failed (an approval that could not be kept was given back).",
				queries: []query{{perSecondBy("result", confirm, with(`result=~"db_unavailable|db_failed"`)), "{{result}}"}}},
		},
	}
}
