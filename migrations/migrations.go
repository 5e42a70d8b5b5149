// Package migrations brings a database to the schema of paymentd. The files are goose's, expand first and contract
// in a later release, so that the instance before and the one after run side by side.
package migrations

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed 0*.sql
var files embed.FS

// FS holds the migration files, and not the golden schema.sql beside them.
func FS() fs.FS { return files }

// Hash stands for the content of all migrations: another hash, another schema.
func Hash() string {
	sum := sha256.New()
	names, _ := fs.Glob(files, "*.sql") // the pattern is good and the files are embedded
	for _, name := range names {
		text, _ := files.ReadFile(name)
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Latest is the version of the newest file: the schema that this build needs.
func Latest() (int64, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil || len(names) == 0 {
		return 0, fmt.Errorf("no migration files: %w", err)
	}
	return goose.NumericComponent(names[len(names)-1])
}

// Migration is one file and when it was applied; the zero time means that it was not.
type Migration struct {
	Version   int64
	Name      string
	AppliedAt time.Time
}

// Up applies what is missing. Several instances may start at once: one works, the others wait for it up to 5 min.
func Up(ctx context.Context, dsn string) error {
	return with(dsn, "migrate up", func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
}

// Down takes all migrations back, and the data with them.
func Down(ctx context.Context, dsn string) error {
	return with(dsn, "migrate down", func(p *goose.Provider) error {
		_, err := p.DownTo(ctx, 0)
		return err
	})
}

// Status lists the migrations in their order.
func Status(ctx context.Context, dsn string) ([]Migration, error) {
	var list []Migration
	err := with(dsn, "migration status", func(p *goose.Provider) error {
		all, err := p.Status(ctx)
		for _, m := range all {
			list = append(list, Migration{Version: m.Source.Version, Name: m.Source.Path, AppliedAt: m.AppliedAt})
		}
		return err
	})
	return list, err
}

func with(dsn, noun string, step func(*goose.Provider) error) error {
	db, err := open(dsn)
	if err != nil {
		return fmt.Errorf("%s: %w", noun, err)
	}
	defer func() { _ = db.Close() }() // the step has said how it went
	// One try per second, so that an instance that waits is up soon after the one that works.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return fmt.Errorf("%s: %w", noun, err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker),
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("%s: %w", noun, err)
	}
	if err := step(p); err != nil {
		return fmt.Errorf("%s: %w", noun, err)
	}
	return nil
}

func open(dsn string) (*sql.DB, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	// A migration may take longer than a statement of the service.
	config.RuntimeParams["statement_timeout"] = "0"
	if config.ValidateConnect == nil {
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite // of several hosts, the primary
	}
	return stdlib.OpenDB(*config), nil
}
