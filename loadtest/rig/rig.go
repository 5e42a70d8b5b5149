// Package rig is the whole system on one machine for scenarios and chaos: a private PostgreSQL, the Toss simulator
// over sockets, a shop that receives notices, and the real paymentd as processes that can be killed. It reads the
// ledgers of both sides.
package rig

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"paymentd/internal/devdb"
	"paymentd/internal/tosssim"
	"paymentd/migrations"
)

// The secrets of a rig; nothing outside it knows them.
const (
	CheckoutSecret = "checkout-secret-0123456789abcdef"
	OperatorSecret = "operator-secret-0123456789abcdef"
	TossSecret     = "test_sk_rig_0123456789"
	hookSecret     = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
)

const database = "paymentd"

// Options of a rig; the zero value is one instance with the defaults of production, built from the sources.
type Options struct {
	// Program is paymentd; empty: Build makes it.
	Program string
	// Settings are environment variables of every instance ("PAYMENTD_RETRY_MAX=0"), beside those that make the rig.
	Settings []string
	// Instances are the further settings of each instance; empty means one instance without any.
	Instances [][]string
	// Programs are the programs of instances that are not Program; an empty one is.
	Programs []string
	// Gateway and Database are what the simulator and PostgreSQL start with.
	Gateway  tosssim.Options
	Database devdb.Options
}

// Rig is the running system. Its methods are safe for concurrent use.
type Rig struct {
	Database  *devdb.Server
	Toss      *tosssim.Server
	Shop      *Shop
	Instances []*Instance

	client *http.Client
	dir    string
	dsn    string
}

// Start starts everything and returns when every instance listens. Whatever ctx does later, Close ends the rig.
func Start(ctx context.Context, o Options) (r *Rig, err error) {
	r = &Rig{client: newClient()}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start rig: %w", err), r.Close())
		}
	}()
	if r.dir, err = os.MkdirTemp("", "paymentd-rig-"); err != nil {
		return r, err
	}
	if o.Program == "" {
		if o.Program, err = Build(ctx, r.dir); err != nil {
			return r, err
		}
	}
	if r.Database, err = devdb.Start(ctx, o.Database); err != nil {
		return r, err
	}
	if err := r.Database.Cluster().Create(ctx, database); err != nil {
		return r, err
	}
	r.dsn = r.Database.DSN(database)
	if err := migrations.Up(ctx, r.dsn); err != nil {
		return r, err
	}
	if r.Toss, err = tosssim.New(o.Gateway).Listen(context.WithoutCancel(ctx), "127.0.0.1:0", "127.0.0.1:0"); err != nil {
		return r, err
	}
	if r.Shop, err = openShop(); err != nil {
		return r, err
	}
	err = r.startInstances(ctx, o)
	return r, err
}

func (r *Rig) startInstances(ctx context.Context, o Options) error {
	if len(o.Instances) == 0 {
		o.Instances = [][]string{nil}
	}
	for i, own := range o.Instances {
		in := &Instance{
			Name: fmt.Sprintf("paymentd-%d", i+1), program: o.programOf(i), rig: r,
			env: slices.Concat(r.environment(), o.Settings, own), log: filepath.Join(r.dir, fmt.Sprintf("paymentd-%d.log", i+1)),
		}
		r.Instances = append(r.Instances, in)
		if err := in.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (o Options) programOf(instance int) string {
	if instance < len(o.Programs) && o.Programs[instance] != "" {
		return o.Programs[instance]
	}
	return o.Program
}

// DSN is the address of paymentd's database.
func (r *Rig) DSN() string { return r.dsn }

// environment is what joins an instance to the rig. Of a variable that is given twice the last one counts.
func (r *Rig) environment() []string {
	return []string{
		"PAYMENTD_DATABASE_URL=" + r.dsn, "PAYMENTD_LISTEN=127.0.0.1:0", "PAYMENTD_ADMIN_LISTEN=127.0.0.1:0",
		"PAYMENTD_API_KEYS=shop:checkout:" + CheckoutSecret + ",ops:operator:" + OperatorSecret,
		"PAYMENTD_TOSS_URL=" + r.Toss.URL(), "PAYMENTD_TOSS_SECRET_KEY=" + TossSecret,
		"PAYMENTD_NOTIFY_WEBHOOK_URL=" + r.Shop.URL, "PAYMENTD_NOTIFY_WEBHOOK_SECRET=" + hookSecret,
	}
}

// Close ends every process and removes what the rig kept on disk, logs included.
func (r *Rig) Close() error {
	var errs []error
	for _, in := range r.Instances {
		in.Kill()
	}
	if r.Toss != nil {
		errs = append(errs, r.Toss.Close())
	}
	if r.Shop != nil {
		r.Shop.close()
	}
	if r.Database != nil {
		errs = append(errs, r.Database.Stop())
	}
	r.client.CloseIdleConnections()
	if r.dir != "" {
		errs = append(errs, os.RemoveAll(r.dir))
	}
	return errors.Join(errs...)
}

// Healthy ends every fault: the gateway listens and answers, the shop takes notices, the database runs.
func (r *Rig) Healthy(ctx context.Context) error {
	r.Toss.ClearFaults()
	r.Shop.Refuse(0)
	err := r.Toss.SetListening(true)
	if r.Session(ctx, `SELECT 1`) != nil { // a restart would cut off what is under way
		err = errors.Join(err, r.Database.Restart(ctx))
	}
	return err
}

// Logs writes every instance's log, its earlier lives included, below dir.
func (r *Rig) Logs(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("keep logs: %w", err)
	}
	for _, in := range r.Instances {
		text, err := os.ReadFile(in.log)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, in.Name+".log"), text, 0o600)
		}
		if err != nil {
			return fmt.Errorf("keep logs: %w", err)
		}
	}
	return nil
}

// Await looks every 50 ms until ok is true or ctx ends, and returns the error of ctx, with what was waited for.
func Await(ctx context.Context, what string, ok func() bool) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", strings.TrimSpace(what), context.Cause(ctx))
		}
	}
	return nil
}

// Standstill watches, until ctx ends, when this process, and so the machine, does not run for 100 ms and more. The
// returned function tells the longest such standstill that overlaps from..to; the zero time is no bound. One that is not
// over when it is asked counts too.
func Standstill(ctx context.Context) (longest func(from, to time.Time) time.Duration) {
	type span struct{ from, to time.Time }
	var mu sync.Mutex
	var stood []span
	last := time.Now()
	see := func() { // with mu held
		now := time.Now()
		if now.Sub(last) >= 100*time.Millisecond {
			stood = append(stood, span{last, now})
		}
		last = now
	}
	go func() {
		for ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			see()
			mu.Unlock()
		}
	}()
	return func(from, to time.Time) (most time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			see()
		}
		for _, s := range stood {
			if s.to.After(from) && (to.IsZero() || s.from.Before(to)) {
				most = max(most, s.to.Sub(s.from))
			}
		}
		return most
	}
}
