package devdb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/devdb/child"
)

// Options of a server; the zero value is a throwaway server for tests.
type Options struct {
	// DataDir is kept for the next, faster start; empty: a temporary folder, removed by Stop or after our death.
	DataDir string
	// Fresh deletes the databases that DataDir holds.
	Fresh bool
	// Port on 127.0.0.1; 0: any free one.
	Port int
	// Durable keeps fsync on. Off, a crash of the machine (not of the server) may lose or break the data.
	Durable bool
	// Settings are PostgreSQL's own and win over ours.
	Settings map[string]string
	// Find says where the binaries come from.
	Find FindOptions
}

// Server is a running PostgreSQL of our own: superuser "postgres", no password, loopback alone.
type Server struct {
	options Options
	bins    Binaries
	account *account
	folder  *folder
	port    int
	// primary is whom a standby follows; else nil.
	primary *Server

	mu   sync.Mutex
	proc *child.Process
}

// startWithin bounds a start, crash recovery included.
const startWithin = time.Minute

// Start finds or fetches PostgreSQL, makes the databases' folder if it is new, and returns when the server answers.
// A folder that another living process uses is refused; the remains of a killed one are no obstacle.
func Start(ctx context.Context, o Options) (*Server, error) {
	bins, err := Find(ctx, o.Find)
	if err != nil {
		return nil, err
	}
	user, err := serverAccount()
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	s := &Server{options: o, bins: bins, account: user}
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// run makes the folder ready and starts the server on it.
func (s *Server) run(ctx context.Context) (err error) {
	if s.folder, err = openFolder(s.options.DataDir); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	if err := s.folder.prepare(ctx, s); err != nil {
		return errors.Join(fmt.Errorf("start PostgreSQL: %w", err), s.folder.close())
	}
	if err := s.launchOnFreePort(ctx); err != nil {
		return errors.Join(fmt.Errorf("start PostgreSQL: %w", err), s.folder.close())
	}
	return nil
}

// launchOnFreePort tries again when somebody else took the port between our look and the server's.
func (s *Server) launchOnFreePort(ctx context.Context) error {
	for try := 1; ; try++ {
		if s.port = s.options.Port; s.port == 0 {
			port, err := freePort()
			if err != nil {
				return err
			}
			s.port = port
		}
		err := s.launch(ctx)
		taken := err != nil && strings.Contains(err.Error(), "in use")
		if !taken || s.options.Port != 0 || try == 5 {
			return err
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (s *Server) launch(ctx context.Context) error {
	spec := child.Spec{
		Name: "postgres",
		Path: filepath.Join(s.bins.Dir, "postgres"),
		Args: s.args(),
		Env:  s.bins.env(),
		Dir:  s.folder.root,
		Log:  s.folder.log(),

		Credential:  s.account.credential(),
		DeathSignal: syscall.SIGINT, // "fast shutdown"
	}
	if s.folder.temporary {
		spec.Remove = s.folder.root
	}
	proc, err := child.Start(spec)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if err := s.ready(ctx, proc); err != nil {
		err = fmt.Errorf("%w; its log ends:\n%s", err, proc.Tail(8))
		return errors.Join(err, proc.Stop(context.Background(), syscall.SIGQUIT))
	}
	s.proc = proc
	return nil
}

func (s *Server) args() []string {
	settings := map[string]string{
		"port": strconv.Itoa(s.port), "listen_addresses": "127.0.0.1", "unix_socket_directories": "",
		"max_connections": "300", "shared_buffers": "64MB",
		// Unpacked packages lack LLVM, and a system without time zone files still knows GMT.
		"jit": "off", "timezone": "GMT", "log_timezone": "GMT",
	}
	if !s.options.Durable {
		maps.Copy(settings, map[string]string{
			"fsync": "off", "full_page_writes": "off", "wal_level": "minimal", "max_wal_senders": "0",
		})
	}
	maps.Copy(settings, s.options.Settings)
	args := []string{"-D", s.folder.data}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

func (s *Server) ready(ctx context.Context, proc *child.Process) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-proc.Done():
			return fmt.Errorf("postgres ended: %w", proc.Err())
		case <-ctx.Done():
			return fmt.Errorf("postgres does not answer: %w", errors.Join(context.Cause(ctx), err))
		case <-tick.C:
		}
	}
}

// answers also looks whether it is our server that answers: with the port taken it would be another one.
func (s *Server) answers(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var dir string
	if err := conn.QueryRow(ctx, "SELECT current_setting('data_directory')").Scan(&dir); err != nil {
		return err
	}
	if dir != s.folder.data {
		return fmt.Errorf("port %d is in use by the server on %s", s.port, dir)
	}
	return nil
}

// DSN is the address of a database of this server.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
}

// Cluster gives the making of databases on this server.
func (s *Server) Cluster() Cluster { return Cluster{url: s.DSN("postgres")} }

// Port is where the server listens on 127.0.0.1; it stays the same over Restart.
func (s *Server) Port() int { return s.port }

// Binaries says which PostgreSQL runs.
func (s *Server) Binaries() Binaries { return s.bins }

// Log is the path of the server's log of its present run.
func (s *Server) Log() string { return s.folder.log() }

// Done is closed when the present run of the server ends, by whatever cause.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.Done()
}

// Kill ends the server at once and unclean, as a crash does: connections break, the next Restart recovers.
func (s *Server) Kill(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.Stop(ctx, syscall.SIGQUIT)
}

// Crash ends the server's main process by SIGKILL, as the death of its machine does: nobody is told anything.
func (s *Server) Crash(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.Stop(ctx, syscall.SIGKILL)
}

// Restart ends the server if it still runs (open transactions are aborted) and starts it on the same port.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.proc.Stop(ctx, syscall.SIGINT, syscall.SIGQUIT); err != nil {
		return err
	}
	if err := s.launch(ctx); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	return nil
}

// Stop ends the server in order and removes a temporary folder. A second Stop does nothing.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.proc.Stop(context.Background(), syscall.SIGINT, syscall.SIGQUIT), s.folder.close())
}

// fill makes the databases' folder: new, or a copy of the primary.
func (s *Server) fill(ctx context.Context, dir string) error {
	if s.primary != nil {
		return s.baseBackup(ctx, dir)
	}
	return s.initdb(ctx, dir)
}

// initdb makes the databases' folder; LC and encoding are fixed so that tests sort alike everywhere.
func (s *Server) initdb(ctx context.Context, dir string) error {
	cmd := s.bins.command(ctx, s.account, "initdb", "-D", dir, "-U", "postgres",
		"-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if _, err := outputOf(cmd); err != nil {
		if s.account == nil && strings.Contains(err.Error(), "effective user ID") {
			return fmt.Errorf("%w (PostgreSQL needs an entry in /etc/passwd for this user id)", err)
		}
		return err
	}
	return os.Chmod(dir, 0o700)
}
