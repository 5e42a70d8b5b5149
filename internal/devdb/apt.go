package devdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// aptSource unpacks Debian's packages without installing them.
type aptSource struct{ f *finder }

func (aptSource) folder() string { return "apt" }

func (aptSource) need() error {
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return errors.New("not a Debian or Ubuntu: no " + program)
		}
	}
	return nil
}

func (aptSource) binaries(dir string) (Binaries, error) {
	bin, err := firstMatch(filepath.Join(dir, "usr", "lib", "postgresql", "*", "bin"))
	if err != nil {
		return Binaries{}, err
	}
	b := Binaries{Dir: bin, Source: "apt"}
	for _, pattern := range []string{"usr/lib/*-linux-*", "lib/*-linux-*"} {
		libs, _ := filepath.Glob(filepath.Join(dir, pattern))
		b.Libs = append(b.Libs, libs...)
	}
	return b, nil
}

// fill first asks apt with the lists of the system. If they are empty or too old, it fetches lists of its own, which
// needs no root and leaves the system's alone.
func (s aptSource) fill(ctx context.Context, dir string) error {
	err := apt{dir: dir, say: s.f.Progress}.unpack(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	s.f.Progress("fetching package lists of our own: apt-get update")
	private := apt{dir: dir, say: s.f.Progress, lists: filepath.Join(dir, ".apt")}
	if err := private.update(ctx); err != nil {
		return err
	}
	if err := private.unpack(ctx); err != nil {
		return err
	}
	return os.RemoveAll(private.lists)
}

// apt calls the apt programs for one folder; lists is where its own package lists are, empty for the system's.
type apt struct {
	dir, lists string
	say        func(string)
}

func (a apt) run(ctx context.Context, program string, args ...string) (string, error) {
	var options []string
	if a.lists != "" {
		options = []string{
			"-o", "Dir::State::Lists=" + filepath.Join(a.lists, "lists"),
			"-o", "Dir::Cache=" + filepath.Join(a.lists, "cache"),
			"-o", "Debug::NoLocking=1",
		}
	}
	// The user _apt, to whom root's apt falls back, may not write into our folder.
	options = append(options, "-o", "APT::Sandbox::User=")
	cmd := exec.CommandContext(ctx, program, append(options, args...)...)
	cmd.Dir = a.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	return outputOf(cmd)
}

func (a apt) update(ctx context.Context) error {
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.lists, sub), 0o755); err != nil {
			return err
		}
	}
	_, err := a.run(ctx, "apt-get", "update", "-qq")
	return err
}

func (a apt) unpack(ctx context.Context) error {
	major, err := a.major(ctx)
	if err != nil {
		return err
	}
	packages := append([]string{"postgresql-" + major, "postgresql-client-" + major, "libpq5"}, a.missing(ctx, major)...)
	a.say("fetching PostgreSQL " + major + ": apt-get download of " + fmt.Sprint(len(packages)) + " packages (about 20 MB)")
	if _, err := a.run(ctx, "apt-get", append([]string{"download", "-qq"}, packages...)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(a.dir, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		if _, err := outputOf(exec.CommandContext(ctx, "dpkg-deb", "-x", deb, a.dir)); err != nil {
			return err
		}
		if err := os.Remove(deb); err != nil {
			return err
		}
	}
	return nil
}

// major reads which version the distribution's package postgresql stands for.
func (a apt) major(ctx context.Context) (string, error) {
	out, err := a.run(ctx, "apt-cache", "depends", "postgresql")
	if err != nil {
		return "", err
	}
	match := regexp.MustCompile(`Depends: postgresql-(\d+)`).FindStringSubmatch(out)
	if match == nil {
		return "", errors.New("the package lists know no package postgresql")
	}
	return match[1], nil
}

// missing lists the shared libraries that PostgreSQL needs and this system lacks. LLVM is left out: it serves the
// just-in-time compiler alone, which we switch off.
func (a apt) missing(ctx context.Context, major string) []string {
	out, err := a.run(ctx, "apt-get", "install", "--print-uris", "-qq", "--no-install-recommends", "postgresql-"+major)
	if err != nil {
		return nil
	}
	var names []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		name, _, _ := strings.Cut(fields[1], "_")
		if strings.HasPrefix(name, "lib") && !strings.HasPrefix(name, "libllvm") && !strings.HasSuffix(name, "-perl") && name != "libpq5" {
			names = append(names, name)
		}
	}
	return names
}

// aptInstall is the last resort of root on Debian: unlike the others it changes the system.
func (f *finder) aptInstall(ctx context.Context) (Binaries, error) {
	if os.Geteuid() != 0 {
		return Binaries{}, errors.New("only root may install packages")
	}
	if err := (aptSource{}).need(); err != nil {
		return Binaries{}, err
	}
	lock, err := f.lockCache(ctx)
	if err != nil {
		return Binaries{}, err
	}
	defer lock.Close()
	f.Progress("installing PostgreSQL: apt-get install postgresql")
	system := apt{dir: "/"}
	if _, err := system.major(ctx); err != nil {
		if _, err := system.run(ctx, "apt-get", "update", "-qq"); err != nil {
			return Binaries{}, err
		}
	}
	if _, err := system.run(ctx, "apt-get", "install", "-y", "-qq", "--no-install-recommends", "postgresql"); err != nil {
		return Binaries{}, err
	}
	bin, err := firstMatch("/usr/lib/postgresql/*/bin")
	if err != nil {
		return Binaries{}, err
	}
	return f.check(ctx, Binaries{Dir: bin, Source: "aptinstall"})
}
