package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"paymentd/internal/devdb"
	"paymentd/internal/devdb/child"
)

// Keys of a stack that only this machine can reach; they open nothing else.
const (
	checkoutKey = "dev-checkout-key-0123456789abcdef"
	operatorKey = "dev-operator-key-0123456789abcdef"
	tossKey     = "test_sk_devstack0123456789abcdef"
	database    = "paymentd"
)

// readyWithin bounds the start of a child, migrations included.
const readyWithin = 40 * time.Second

// stack is the three servers and where they listen.
type stack struct {
	flags
	say func(format string, args ...any)

	postgres *devdb.Server
	tosssim  *child.Process
	paymentd *child.Process

	public, private string // doors of paymentd, host:port
	toss, control   string // ports of tosssim, host:port

	bins      string  // the folder of the programs
	confirmed payment // by the demonstration
}

// up starts the servers, each when the one before it answers.
func (s *stack) up(ctx context.Context) error {
	if err := s.startPostgres(ctx); err != nil {
		return err
	}
	var err error
	if s.bins, err = s.programs(ctx); err != nil {
		return err
	}
	if err := s.choosePorts(); err != nil {
		return err
	}
	if s.tosssim, err = s.child(filepath.Join(s.bins, "tosssim"), nil, "--listen", s.toss, "--control", s.control); err != nil {
		return err
	}
	if err := s.answers(ctx, s.tosssim, "tosssim", "http://"+s.control+"/control/ledger?summary=true"); err != nil {
		return err
	}
	s.say("tosssim on http://%s, control http://%s", s.toss, s.control)
	if s.paymentd, err = s.child(filepath.Join(s.bins, "paymentd"), s.settings(), "serve"); err != nil {
		return err
	}
	if err := s.answers(ctx, s.paymentd, "paymentd", "http://"+s.private+"/readyz"); err != nil {
		if s.keep {
			err = fmt.Errorf("%w\n(data of an earlier version may be in the way: without --keep it is dropped)", err)
		}
		return err
	}
	s.say("paymentd on http://%s, private door http://%s", s.public, s.private)
	return nil
}

func (s *stack) startPostgres(ctx context.Context) error {
	options := devdb.Options{
		DataDir: filepath.Join(s.data, "postgres"), Fresh: s.fresh, Durable: true,
		Find: devdb.FindOptions{Progress: func(line string) { s.say("%s", line) }},
	}
	if port := 54329; free("127.0.0.1:" + strconv.Itoa(port)) {
		options.Port = port
	}
	var err error
	if s.postgres, err = devdb.Start(ctx, options); err != nil {
		if errors.Is(err, devdb.ErrInUse) {
			return fmt.Errorf("%w: is another devstack up? --data gives this one a folder of its own", err)
		}
		return err
	}
	bins := s.postgres.Binaries()
	s.say("PostgreSQL %d (%s, %s) on 127.0.0.1:%d", bins.Major, bins.Source, bins.Dir, s.postgres.Port())
	cluster := s.postgres.Cluster()
	if !s.keep {
		// The simulator has forgotten the payments of the last run: kept here, they would be replayed without an approval.
		if err := cluster.Drop(ctx, database); err != nil {
			return err
		}
	}
	return cluster.Create(ctx, database)
}

// choosePorts takes the documented ports where they are free, so that pasted lines keep working.
func (s *stack) choosePorts() error {
	public := 8080
	if s.port != 0 {
		public = s.port
		if !free("127.0.0.1:" + strconv.Itoa(public)) {
			return fmt.Errorf("--port %d: in use by another program", public)
		}
	}
	for _, p := range []struct {
		addr *string
		port int
	}{{&s.public, public}, {&s.private, 9090}, {&s.toss, 8090}, {&s.control, 8091}} {
		*p.addr = "127.0.0.1:" + strconv.Itoa(p.port)
		if free(*p.addr) {
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("free port: %w", err)
		}
		*p.addr = l.Addr().String()
		l.Close()
		s.say("port %d is taken, using %s", p.port, *p.addr)
	}
	return nil
}

func free(addr string) bool {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// settings is paymentd's configuration; the rest stays at its defaults or as the environment says.
func (s *stack) settings() []string {
	return []string{
		"PAYMENTD_DATABASE_URL=" + s.postgres.DSN(database),
		"PAYMENTD_LISTEN=" + s.public,
		"PAYMENTD_ADMIN_LISTEN=" + s.private,
		"PAYMENTD_API_KEYS=shop:checkout:" + checkoutKey + ",dev:operator:" + operatorKey,
		"PAYMENTD_TOSS_URL=http://" + s.toss,
		"PAYMENTD_TOSS_SECRET_KEY=" + tossKey,
	}
}

func (s *stack) child(path string, env []string, args ...string) (*child.Process, error) {
	name := filepath.Base(path)
	spec := child.Spec{
		Name: name, Path: path, Args: args, Dir: s.data,
		Log: s.log(name), Env: append(inherited(os.Environ()), env...),
	}
	if s.verbose {
		spec.Output = os.Stderr
	}
	return child.Start(spec)
}

func (s *stack) log(name string) string { return filepath.Join(s.data, name+".log") }

// inherited is our environment without PG…, which pgx would read.
func inherited(environ []string) []string {
	var kept []string
	for _, entry := range environ {
		if !strings.HasPrefix(entry, "PG") {
			kept = append(kept, entry)
		}
	}
	return kept
}

// answers waits until the child says 200 at the address; a child that ends is told with the end of its log.
func (s *stack) answers(ctx context.Context, p *child.Process, name, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not ready within %v", readyWithin))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		answer, err := call(ctx, request{method: http.MethodGet, url: url})
		if err == nil && answer.status == http.StatusOK {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("answers %d %s", answer.status, answer.body)
		}
		select {
		case <-p.Done():
			return s.died(name, p)
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w; %s", name, context.Cause(ctx), err, s.tail(name))
		case <-tick.C:
		}
	}
}

// wait returns when the stack is to end: nil after Ctrl-C, else which server ended by itself.
func (s *stack) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.paymentd.Done():
		return s.died("paymentd", s.paymentd)
	case <-s.tosssim.Done():
		return s.died("tosssim", s.tosssim)
	case <-s.postgres.Done():
		return fmt.Errorf("PostgreSQL ended; its log %s ends:\n%s", s.postgres.Log(), child.Tail(s.postgres.Log(), 12))
	}
}

func (s *stack) died(name string, p *child.Process) error {
	how := "with status 0"
	if err := p.Err(); err != nil {
		how = "with " + err.Error()
	}
	return fmt.Errorf("%s ended by itself %s; %s", name, how, s.tail(name))
}

func (s *stack) tail(name string) string {
	if s.verbose {
		return "its log is above"
	}
	return "its log " + s.log(name) + " ends:\n" + child.Tail(s.log(name), 12)
}

// down stops what runs, paymentd first, which still needs the other two to finish running approvals.
func (s *stack) down() error {
	var errs []error
	var stopped []string
	for _, c := range []struct {
		name string
		p    *child.Process
	}{{"paymentd", s.paymentd}, {"tosssim", s.tosssim}} {
		if c.p != nil {
			errs = append(errs, c.p.Stop(context.Background(), syscall.SIGTERM))
			stopped = append(stopped, c.name)
		}
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop())
		s.say("stopped: %s; logs, and the data for --keep, are in %s", strings.Join(append(stopped, "PostgreSQL"), ", "), s.data)
	}
	return errors.Join(errs...)
}
