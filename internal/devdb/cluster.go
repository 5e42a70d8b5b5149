package devdb

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Cluster is a running server, ours or another's, as a maker of databases.
type Cluster struct {
	url string
}

// Migration brings an empty database to the schema that tests want.
type Migration struct {
	// Hash stands for the content of the migrations: another hash, another template.
	Hash string
	// Up migrates the database at dsn and closes its connections.
	Up func(ctx context.Context, dsn string) error
}

// ClusterAt is the server at a pgx DSN whose user may create databases.
func ClusterAt(dsn string) Cluster { return Cluster{url: dsn} }

// DSN is the address of one of the server's databases.
func (c Cluster) DSN(database string) string {
	if u, err := url.Parse(c.url); err == nil && u.Scheme != "" {
		u.Path = "/" + database
		return u.String()
	}
	return c.url + " dbname=" + database
}

// Create makes an empty database unless it exists.
func (c Cluster) Create(ctx context.Context, name string) error {
	return c.locked(ctx, "create database "+name, func(conn *pgx.Conn) error {
		found, err := exists(ctx, conn, name)
		if err != nil || found {
			return err
		}
		_, err = conn.Exec(ctx, "CREATE DATABASE "+quoted(name))
		return err
	})
}

// Template returns the name of the migrated template for m, made by whoever comes first, in this process or another.
func (c Cluster) Template(ctx context.Context, m Migration) (string, error) {
	sum := sha256.Sum256([]byte(m.Hash))
	name := "tmpl_" + hex.EncodeToString(sum[:8])
	err := c.locked(ctx, "template "+name, func(conn *pgx.Conn) error {
		var done bool
		err := conn.QueryRow(ctx, "SELECT datistemplate FROM pg_database WHERE datname = $1", name).Scan(&done)
		if done || (err != nil && !errors.Is(err, pgx.ErrNoRows)) {
			return err
		}
		// One that is there without the mark was left half made.
		return firstError(
			func() error { return drop(ctx, conn, name) },
			func() error { return execute(ctx, conn, "CREATE DATABASE "+quoted(name)) },
			func() error { return m.Up(ctx, c.DSN(name)) },
			func() error {
				return execute(ctx, conn, "ALTER DATABASE "+quoted(name)+" IS_TEMPLATE true ALLOW_CONNECTIONS false")
			},
		)
	})
	return name, err
}

// Clone makes a database that is a copy of the template.
func (c Cluster) Clone(ctx context.Context, template, name string) error {
	return c.with(ctx, "clone "+template, func(conn *pgx.Conn) error {
		return execute(ctx, conn, "CREATE DATABASE "+quoted(name)+" TEMPLATE "+quoted(template))
	})
}

// Drop deletes the database and breaks the connections to it.
func (c Cluster) Drop(ctx context.Context, name string) error {
	return c.with(ctx, "drop "+name, func(conn *pgx.Conn) error { return drop(ctx, conn, name) })
}

// Disconnect breaks all connections to the database, as a failover does, and says how many.
func (c Cluster) Disconnect(ctx context.Context, name string) (broken int, err error) {
	err = c.with(ctx, "disconnect "+name, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1`, name).Scan(&broken)
	})
	return broken, err
}

// with opens a connection for one step: a pool would leave goroutines that leak checks of tests report.
func (c Cluster) with(ctx context.Context, noun string, step func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, c.url)
	if err != nil {
		return fmt.Errorf("%s: %w", noun, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := step(conn); err != nil {
		return fmt.Errorf("%s: %w", noun, err)
	}
	return nil
}

// locked runs the step while no other process runs one of this server's locked steps.
func (c Cluster) locked(ctx context.Context, noun string, step func(*pgx.Conn) error) error {
	const key = 0x70617964 // "payd"
	return c.with(ctx, noun, func(conn *pgx.Conn) error {
		if err := execute(ctx, conn, fmt.Sprintf("SELECT pg_advisory_lock(%d)", key)); err != nil {
			return err
		}
		return step(conn)
	})
}

func exists(ctx context.Context, conn *pgx.Conn, name string) (found bool, err error) {
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&found)
	return found, err
}

func drop(ctx context.Context, conn *pgx.Conn, name string) error {
	return execute(ctx, conn, "DROP DATABASE IF EXISTS "+quoted(name)+" WITH (FORCE)")
}

func execute(ctx context.Context, conn *pgx.Conn, sql string) error {
	_, err := conn.Exec(ctx, sql)
	return err
}

func firstError(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// Field is one column of a row, as text for people.
type Field struct{ Name, Value string }

// Row reads the first row of a query for showing; no row is pgx.ErrNoRows.
func (c Cluster) Row(ctx context.Context, database, query string, args ...any) (row []Field, err error) {
	err = ClusterAt(c.DSN(database)).with(ctx, "read "+database, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		if !rows.Next() {
			return errors.Join(rows.Err(), pgx.ErrNoRows)
		}
		values, err := rows.Values()
		if err != nil {
			return err
		}
		for i, f := range rows.FieldDescriptions() {
			row = append(row, Field{Name: f.Name, Value: shown(values[i])})
		}
		return nil
	})
	return row, err
}

func shown(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	default:
		return fmt.Sprint(v)
	}
}
