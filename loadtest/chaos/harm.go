package main

import (
	"context"
	"math/rand/v2"
	"time"

	"paymentd/loadtest/rig"
)

// kill ends one instance again and again, and starts it again at once.
func (r *round) kill(ctx context.Context, rng *rand.Rand, in *rig.Instance) {
	for {
		life := time.Duration(float64(r.killEvery) * (0.2 + 1.6*rng.Float64()))
		how := rng.IntN(20)
		if sleep(ctx, life); ctx.Err() != nil {
			return
		}
		switch {
		case how == 0 && !r.hurry:
			r.did(&r.result.Pauses, "SIGSTOP "+in.Name)
			in.Pause(7 * time.Second) // longer than most leases
			continue
		case how < 5:
			r.did(&r.result.Sigterm, "SIGTERM "+in.Name)
			_ = in.Stop() // with a dead database or gateway it may not end in order
		default:
			r.did(&r.result.Sigkill, "SIGKILL "+in.Name)
			in.Kill()
		}
		for ctx.Err() == nil && in.Start(ctx) != nil {
			sleep(ctx, 50*time.Millisecond) // it gives up when the database is down too long
		}
	}
}

// harm breaks what paymentd stands on.
func (r *round) harm(ctx context.Context, rng *rand.Rand) {
	for {
		wait := r.spread/16 + time.Duration(rng.Int64N(int64(r.spread/5)))
		what, long := rng.IntN(8), time.Duration(rng.Int64N(int64(r.spread/5)))
		if sleep(ctx, wait); ctx.Err() != nil {
			return
		}
		// What was begun is ended, also when the round is over.
		steady := context.WithoutCancel(ctx)
		switch what {
		case 0:
			r.did(&r.result.DBKills, "kill PostgreSQL")
			_ = r.rig.Database.Kill(steady)
			sleep(ctx, long)
			_ = r.rig.Database.Restart(steady)
		case 1:
			r.did(&r.result.DBRestarts, "restart PostgreSQL")
			_ = r.rig.Database.Restart(steady)
		case 2:
			r.did(&r.result.GatewayDowns, "the gateway refuses connections")
			_ = r.rig.Toss.SetListening(false)
			sleep(ctx, long)
			_ = r.rig.Toss.SetListening(true)
		case 3, 4:
			r.did(&r.result.Disconnects, "break half of the database connections")
			_ = r.rig.Session(steady, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'paymentd' AND random() < 0.5`)
		case 5:
			r.did(&r.result.Locks, "every connection sleeps at a lock of the table")
			_ = r.rig.Session(ctx, `BEGIN`, `LOCK payments IN ACCESS EXCLUSIVE MODE`, `SELECT pg_sleep(1.5)`)
		case 6:
			r.did(&r.result.Locks, "a third of the rows is locked")
			_ = r.rig.Session(ctx, `BEGIN`, `SELECT FROM payments WHERE random() < 0.3 FOR UPDATE`, `SELECT pg_sleep(5.5)`)
		case 7:
			r.did(&r.result.Crowds, "no connection is left")
			r.rig.Crowd(ctx, long)
		}
	}
}
