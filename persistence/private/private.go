package private

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
)

// ErrInUse is returned when another process owns the data directory.
var ErrInUse = errors.New("the data directory is in use by another process")

// ErrNotRunning is returned when no server of the data directory accepts connections.
var ErrNotRunning = errors.New("the private Postgres is not running")

// ErrNoData is returned with Config.Existing if the data directory holds no cluster.
var ErrNoData = errors.New("there is no data")

// Names inside the cluster. The login owns the database and may create roles, but is not a
// superuser. The administrator is the cluster's superuser.
const (
	login    = "svc"
	database = "svc"
	admin    = "postgres"
)

const (
	lockPoll     = 25 * time.Millisecond
	readyTimeout = 2 * time.Minute // for a server that does not say that it starts
	recovering   = time.Minute     // between two lines of the log while it does
	haste        = 5 * time.Second // time that a forced stop leaves the server
)

// Config says where the cluster lies and how to open it.
type Config struct {
	DataDir string
	Log     zerolog.Logger
	// Wait is how long to wait for another owner to leave (or, with Share, to be ready)
	// before failing with ErrInUse.
	Wait time.Duration
	// Share accepts a server that another process runs: Open then only connects.
	Share bool
	// Existing forbids creating a cluster: if there is none, Open returns ErrNoData and does
	// not change the file system.
	Existing bool
	// Unsafe turns off everything that makes commits survive a power cut, and in a cluster that
	// it creates the check of passwords, which costs each connection some milliseconds. For tests only.
	Unsafe bool
	// Settings are further server settings; they override the package's own.
	Settings map[string]string

	search   func() []string                                         // directories that may hold binaries
	fetch    func(ctx context.Context, major int, into string) error // obtains binaries if none are found
	fallback string                                                  // where clusters go that the data directory cannot hold
}

// Server is a running private Postgres, run by this process or another.
type Server struct {
	url, adminURL string
	cluster       *cluster
	proc          *process // nil if another process runs the server
	lock, home    *os.File // locks of the data directory and of the cluster's own, which may lie outside it
}

// Open starts the private Postgres of cfg.DataDir and returns when it accepts connections.
// The first Open creates the cluster.
func Open(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.search == nil {
		cfg.search = installed
	}
	if cfg.fetch == nil {
		cfg.fetch = download
	}
	if cfg.fallback == "" {
		cfg.fallback = "/var/lib/svc"
	}
	if cfg.Existing {
		if err := exists(cfg); err != nil {
			return nil, err
		}
	}
	dir, err := dataDir(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	cfg.DataDir = dir

	wait := time.NewTimer(cfg.Wait)
	defer wait.Stop()
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	busy := fmt.Errorf("private Postgres in %s: %w (is another svc running?)", dir, ErrInUse)
	for {
		lock, err := tryLock(filepath.Join(dir, "postgres.lock"))
		if err != nil {
			return nil, err
		}
		if lock != nil {
			s, err := own(ctx, cfg)
			if err == nil {
				s.lock = lock
				return s, nil
			}
			lock.Close()
			if busy = err; !errors.Is(err, ErrInUse) {
				return nil, err
			}
		} else if cfg.Share {
			if s, err := connectOnly(ctx, cfg); err == nil {
				return s, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-wait.C:
			return nil, busy
		case <-poll.C:
		}
	}
}

// URL returns the connection string of the service's own login. It holds a password.
func (s *Server) URL() string { return s.url }

// AdminURL returns the connection string of the superuser. It holds a password.
func (s *Server) AdminURL() string { return s.adminURL }

// Owner reports whether this process runs the server.
func (s *Server) Owner() bool { return s.proc != nil }

// Pid returns the server's process id, 0 while it is down or not ours.
func (s *Server) Pid() int {
	if s.proc == nil {
		return 0
	}
	return s.proc.currentPid()
}

// Stop stops the server and releases the data directory. Open connections are cut. If ctx
// ends first, the server is stopped without its last checkpoint, which loses nothing. Stop
// does nothing to a server that another process runs.
func (s *Server) Stop(ctx context.Context) error {
	if s.proc == nil {
		return nil
	}
	err := s.proc.stop(ctx)
	s.cluster.removeSocket()
	s.home.Close()
	s.lock.Close()
	return err
}

// own creates and starts the cluster; the caller holds the lock of the data directory. A copy
// of that directory may name the same cluster outside it: it is refused, with ErrInUse if the cluster does not
// say yet to which of them it belongs and the other one runs it.
func own(ctx context.Context, cfg Config) (_ *Server, err error) {
	c, err := locate(cfg)
	if err != nil {
		return nil, err
	}
	bin, err := c.settle(ctx, cfg)
	if err != nil {
		return nil, err
	}
	home, err := c.lock()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			home.Close()
		}
	}()
	if err := c.claim(cfg.DataDir); err != nil {
		return nil, fmt.Errorf("record the owner of the private Postgres: %w", err)
	}
	if err := c.stopSurvivors(ctx); err != nil {
		return nil, err
	}
	if err := c.initialise(ctx, bin, cfg); err != nil {
		return nil, err
	}
	if err := c.makeSocketDir(); err != nil {
		return nil, err
	}
	s, err := c.server()
	if err != nil {
		return nil, err
	}
	s.home, s.proc = home, newProcess(c, bin, cfg)
	go s.proc.run()

	if err := s.awaitReady(ctx, cfg.Log, readyTimeout); err != nil {
		hurry, cancel := context.WithTimeout(context.WithoutCancel(ctx), haste)
		defer cancel()
		s.proc.stop(hurry)
		return nil, err
	}
	return s, nil
}

// exists returns ErrNoData, with the directory that it checked, unless the data directory
// holds a cluster. It creates nothing.
func exists(cfg Config) error {
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	cfg.DataDir = dir
	c, err := locate(cfg)
	if err != nil {
		return err
	}
	// The directory of the cluster may belong to another user and be unreadable: only a
	// missing one means that there is no data.
	if _, err := os.Stat(filepath.Join(c.data(), "PG_VERSION")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w in %s", ErrNoData, dir)
	}
	return nil
}

// Connect returns a Server that another process runs. It never starts one: ErrNotRunning.
func Connect(ctx context.Context, dataDirectory string) (*Server, error) {
	dir, err := filepath.Abs(dataDirectory)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	return connectOnly(ctx, Config{DataDir: dir})
}

func connectOnly(ctx context.Context, cfg Config) (*Server, error) {
	c, err := locate(cfg)
	if err != nil {
		return nil, err
	}
	s, err := c.server()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	conn, err := connect(ctx, s.url)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	return s, conn.Close(ctx)
}

// server returns the connection strings of the cluster, without a process.
func (c *cluster) server() (*Server, error) {
	password, err := os.ReadFile(c.password())
	if err != nil {
		return nil, fmt.Errorf("read the password of the private Postgres: %w", err)
	}
	dsn := func(user, db string) string {
		u := url.URL{Scheme: "postgres", User: url.UserPassword(user, string(password)), Path: "/" + db,
			RawQuery: url.Values{"host": {c.socket()}}.Encode()}
		return u.String()
	}
	return &Server{url: dsn(login, database), adminURL: dsn(admin, "postgres"), cluster: c}, nil
}

// awaitReady returns when the service's login can connect. It does not try before the server says that it
// accepts connections: each attempt costs the server a process, and recovery its time. After a crash the server replays
// its log, which may take long. It says so meanwhile, and patience begins when it says something else: a server that
// is stopped before the end of its recovery begins anew at the next start.
func (s *Server) awaitReady(ctx context.Context, log zerolog.Logger, patience time.Duration) error {
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	begun := time.Now()
	since, next := begun, begun.Add(recovering)
	for {
		err := errors.New("it does not accept connections yet")
		switch now := time.Now(); s.cluster.status(s.proc.currentPid()) {
		case starting:
			if since = now; now.After(next) {
				log.Warn().Dur("for", now.Sub(begun)).Str("log", s.cluster.logFile()).Msg("the private Postgres still recovers: it replays its log after a crash")
				next = now.Add(recovering)
			}
		case accepts:
			if err = s.bootstrap(ctx); err == nil {
				s.proc.markReady()
				return nil
			}
		}
		if time.Since(since) > patience {
			return fmt.Errorf("the private Postgres is not ready after %s (last answer: %w)", patience, err)
		}
		select {
		case <-s.proc.done:
			return fmt.Errorf("the private Postgres ended while starting: %w; its log says: %s", s.proc.failure(), s.cluster.logTail())
		case <-ctx.Done():
			return fmt.Errorf("the private Postgres is not ready: %w (last answer: %v)", ctx.Err(), err)
		case <-poll.C:
		}
	}
}

// bootstrap creates the login and the database if they are missing: after initdb, or after a
// kill between initdb and here.
func (s *Server) bootstrap(ctx context.Context) error {
	conn, err := connect(ctx, s.url)
	if err == nil {
		return conn.Close(ctx)
	}
	conn, adminErr := connect(ctx, s.adminURL)
	if adminErr != nil {
		return adminErr
	}
	defer conn.Close(ctx)
	password := conn.Config().Password
	var roleExists, databaseExists bool
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1), EXISTS (SELECT FROM pg_database WHERE datname = $2)`,
		login, database).Scan(&roleExists, &databaseExists)
	if err != nil {
		return err
	}
	if !roleExists {
		// The password consists of hexadecimal digits only: it needs no quoting.
		if _, err := conn.Exec(ctx, "CREATE ROLE "+login+" LOGIN CREATEROLE PASSWORD '"+password+"'"); err != nil {
			return err
		}
	}
	if !databaseExists {
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+database+" OWNER "+login); err != nil {
			return err
		}
	}
	conn, err = connect(ctx, s.url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return pgx.Connect(ctx, dsn)
}

// tryLock returns nil without an error if another process holds the lock.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the data directory: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR) {
		return nil, nil
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// dataDir creates the data directory and returns its real absolute path. Other users may pass
// through it, since the server may run under another user; the files in it are protected
// individually.
func dataDir(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("private Postgres: no data directory given")
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return "", fmt.Errorf("make the data directory: %w", err)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}
