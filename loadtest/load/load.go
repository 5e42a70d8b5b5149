// Package load is a closed-loop load client: so many callers, each on a connection of its own, each with one call
// under way. It writes and reads HTTP/1.1 itself, because it shares a small machine with what it measures.
package load

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options of a run.
type Options struct {
	// Address is host:port, Path the route of every POST, Secret the bearer key.
	Address, Path, Secret string
	// Clients is how many callers there are.
	Clients int
	// Warm is the time before the measurement, For its length. The callers arrive evenly over the first half of Warm.
	Warm, For time.Duration
	// Body appends the n-th JSON body of a client to b; n counts from 0.
	Body func(b []byte, client, n int) []byte
}

// Result is what was answered within the measurement.
type Result struct {
	// Took is the length of the measurement.
	Took time.Duration
	// Statuses counts the answers by HTTP status.
	Statuses map[int]int
	// Latencies are the callers' waits in ascending order; Own is app + db of Server-Timing, likewise, where it came.
	Latencies, Own []time.Duration
	// All counts every answer by HTTP status, also those before and after the measurement.
	All map[int]int
}

// answerWithin ends a run whose server has gone silent.
const answerWithin = time.Minute

// Run loads until the measurement is over and every call under way is answered. A call that is not answered is an
// error: it would stand for a result that nobody knows.
func Run(ctx context.Context, o Options) (Result, error) {
	if o.Clients < 1 || o.For <= 0 || o.Body == nil {
		return Result{}, errors.New("load: clients, length and body are required")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Warm+o.For+answerWithin, errors.New("a call was not answered"))
	defer cancel()
	from := time.Now().Add(o.Warm)
	callers := make([]caller, o.Clients)
	var working sync.WaitGroup
	for i := range callers {
		callers[i] = caller{Options: o, id: i, from: from, to: from.Add(o.For)}
		working.Go(func() {
			if err := callers[i].run(ctx); err != nil {
				callers[i].err = err
				cancel()
			}
		})
	}
	working.Wait()
	r := Result{Took: o.For, Statuses: map[int]int{}, All: map[int]int{}}
	var errs []error
	for i := range callers {
		c := &callers[i]
		r.Latencies, r.Own = append(r.Latencies, c.latencies...), append(r.Own, c.own...)
		add(r.Statuses, c.statuses)
		add(r.All, c.all)
		if c.err != nil && !errors.Is(c.err, context.Canceled) {
			errs = append(errs, c.err)
		}
	}
	slices.Sort(r.Latencies)
	slices.Sort(r.Own)
	if len(errs) > 0 {
		return r, fmt.Errorf("load: %d of %d clients failed, first: %w", len(errs), o.Clients, errs[0])
	}
	return r, context.Cause(ctx)
}

func add(to, from map[int]int) {
	for status, n := range from {
		to[status] += n
	}
}

// PerSecond is the rate of answers within the measurement.
func (r Result) PerSecond() float64 { return float64(len(r.Latencies)) / r.Took.Seconds() }

// Only is an error unless every answer, measured or not, had this status.
func (r Result) Only(status int) error {
	if len(r.All) == 1 && r.All[status] > 0 {
		return nil
	}
	var got []string
	for _, s := range slices.Sorted(maps.Keys(r.All)) {
		got = append(got, fmt.Sprintf("%d × %d", r.All[s], s))
	}
	return fmt.Errorf("want every answer to be %d, got %s", status, strings.Join(got, ", "))
}

// Quantile is the q-quantile (0 to 1) of ascending values, 0 if there are none.
func Quantile(ascending []time.Duration, q float64) time.Duration {
	if len(ascending) == 0 {
		return 0
	}
	return ascending[min(len(ascending)-1, int(q*float64(len(ascending))))]
}

// caller is one client.
type caller struct {
	Options
	id       int
	from, to time.Time

	statuses, all  map[int]int
	latencies, own []time.Duration
	err            error
}

func (c *caller) run(ctx context.Context) error {
	c.statuses, c.all = map[int]int{}, map[int]int{}
	arrival := time.NewTimer(c.Warm / 2 * time.Duration(c.id) / time.Duration(c.Clients))
	defer arrival.Stop()
	select {
	case <-arrival.C:
	case <-ctx.Done():
		return context.Canceled
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	wire := newWire(conn, c.Options)
	var body []byte
	for n := 0; time.Now().Before(c.to); n++ {
		body = c.Body(body[:0], c.id, n)
		begin := time.Now()
		a, err := wire.post(body)
		end := time.Now()
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return err
		}
		c.all[a.status]++
		if end.Before(c.from) || end.After(c.to) {
			continue
		}
		c.statuses[a.status]++
		c.latencies = append(c.latencies, end.Sub(begin))
		if a.timed {
			c.own = append(c.own, a.own)
		}
	}
	return nil
}
