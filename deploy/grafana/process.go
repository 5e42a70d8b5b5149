package main

func process() dashboard {
	return dashboard{
		title: "paymentd 5: process",
		about: "**Are the instances themselves well?** Everything here is flat for days when they are. A line that climbs and never falls is a leak.",
		panels: []panel{
			{kind: number, width: 6, unit: "short", title: "Instances that answer", about: "How many of the instances that Prometheus knows answered its last scrape.",
				queries: []query{{`sum(up{job="paymentd",instance=~"$instance"})`, "up"}}},
			{kind: number, width: 6, unit: "s", title: "When was the youngest started?", about: "Seconds since the last start of an instance: a small number that nobody expects is a crash.",
				queries: []query{{`time() - max(process_start_time_seconds{job="paymentd",instance=~"$instance"})`, "ago"}}},
			{kind: table, width: 12, unit: "none", title: "Which version runs where?", about: "The build of each instance; two versions at once are normal during a deployment only.",
				queries: []query{{"max by (instance, version) (paymentd_build_info" + only + ")", ""}}},
			{kind: lines, width: 12, unit: "percentunit", title: "How busy is the CPU?", about: "Share of one processor core; 100 % is one core full. paymentd mostly waits, so that this stays low.",
				queries: []query{{`sum by (instance) (rate(process_cpu_seconds_total{job="paymentd",instance=~"$instance"}[$__rate_interval]))`, "{{instance}}"}}},
			{kind: lines, width: 12, unit: "short", title: "How many goroutines are there?", about: "A few per waiting confirm. It falls back after a burst; if not, something hangs.",
				queries: []query{{`sum by (instance) (go_goroutines{job="paymentd",instance=~"$instance"})`, "{{instance}}"}}},
			{kind: lines, width: 12, unit: "bytes", title: "How much memory is used?", about: "resident = what the machine gives the process; heap = what the program itself holds.",
				queries: []query{
					{`sum by (instance) (process_resident_memory_bytes{job="paymentd",instance=~"$instance"})`, "resident, {{instance}}"},
					{`sum by (instance) (go_memstats_heap_inuse_bytes{job="paymentd",instance=~"$instance"})`, "heap, {{instance}}"},
				}},
			{kind: lines, width: 12, unit: "Bps", title: "How much memory is allocated per second?", about: "What the garbage collector has to clean up; it grows with the number of confirms and with nothing else.",
				queries: []query{{`sum by (instance) (rate(go_memstats_alloc_bytes_total{job="paymentd",instance=~"$instance"}[$__rate_interval]))`, "{{instance}}"}}},
			{kind: lines, width: 12, unit: "s", title: "How long does garbage collection stop the program?", about: "The longest pause of late. Anything near a millisecond is harmless.",
				queries: []query{{`max by (instance) (go_gc_duration_seconds{job="paymentd",instance=~"$instance",quantile="1"})`, "{{instance}}"}}},
			{kind: lines, width: 12, unit: "short", title: "How many files and sockets are open?", about: "Connections of callers, to the gateway and to the database. The limit is process_max_fds.",
				queries: []query{{`sum by (instance) (process_open_fds{job="paymentd",instance=~"$instance"})`, "{{instance}}"}}},
		},
	}
}
