package private

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// oldest is the oldest major version accepted for a new cluster: what the migrations fit.
const oldest = 15

// binaries is one installation of Postgres.
type binaries struct {
	dir   string
	major int
}

func (b binaries) path(name string) string { return filepath.Join(b.dir, name) }

// installed lists the directories where packages install the server's binaries, best first.
func installed() []string {
	var dirs []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/usr/libexec/postgresql*",
	} {
		found, _ := filepath.Glob(pattern) // the patterns are valid
		dirs = append(dirs, found...)
	}
	if p, err := exec.LookPath("initdb"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(p))
		}
	}
	for _, pattern := range []string{
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin",
		"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	} {
		found, _ := filepath.Glob(pattern)
		dirs = append(dirs, found...)
	}
	return dirs
}

var versionLine = regexp.MustCompile(`PostgreSQL\) (\d+)`)

// inspect reads the major version of the server in dir.
func inspect(ctx context.Context, dir string) (binaries, bool) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return binaries{}, false
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version")
	cmd.Env = childEnv
	out, err := cmd.Output()
	if err != nil {
		return binaries{}, false
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return binaries{}, false
	}
	major, err := strconv.Atoi(string(m[1]))
	return binaries{dir: dir, major: major}, err == nil
}

// pick chooses among dirs: the version that made the cluster or, with major 0, the newest.
func pick(ctx context.Context, dirs []string, major int) (binaries, bool) {
	var best binaries
	for _, dir := range dirs {
		b, ok := inspect(ctx, dir)
		switch {
		case !ok:
		case major != 0 && b.major == major:
			return b, true
		case major == 0 && b.major >= oldest && b.major > best.major:
			best = b
		}
	}
	return best, best.major != 0
}

// missing returns an error that names the package to install.
func missing(major int, cause error) error {
	if major == 0 {
		return fmt.Errorf("no PostgreSQL server (version %d or newer) found on this machine: install the package postgresql "+
			"(Debian, Ubuntu: apt-get install postgresql; macOS: brew install postgresql; Fedora: dnf install postgresql-server) "+
			"or set SVC_DATABASE_URL; obtaining it over the network did not work either: %w", oldest, cause)
	}
	return fmt.Errorf("the data was written by PostgreSQL %[1]d, and no PostgreSQL %[1]d is on this machine: install the package postgresql-%[1]d "+
		"(Debian, Ubuntu: apt-get install postgresql-%[1]d; macOS: brew install postgresql@%[1]d; Fedora: dnf install postgresql%[1]d-server); "+
		"obtaining it over the network did not work either: %[2]w", major, cause)
}
