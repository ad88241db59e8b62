package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/persistence/blob"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// attachments reads the beginning of attached files for models.
type attachments struct{ blobs *blob.Store }

// Start waits for a store that is away as the turn waits for the database: its error is
// UNAVAILABLE.
func (a attachments) Start(ctx context.Context, tenant id.TenantID, attachment id.AttachmentID, max int) ([]byte, error) {
	f, _, err := a.blobs.Open(ctx, store.AttachmentFile(tenant, attachment))
	var b []byte
	if err == nil {
		b, err = io.ReadAll(io.LimitReader(f, int64(max)))
		err = errors.Join(err, f.Close())
	}
	if errors.Is(err, blob.ErrUnavailable) {
		err = errors.Join(problem.Unavailable("Storage is not available now.", time.Second), err)
	}
	return b, err
}

// artifacts stores the files that runs make.
type artifacts struct{ blobs *blob.Store }

// Store leaves the file in doubt: a later sweep removes it if its row has not been committed. Every
// error of the store is worth another try, while the run's time lasts.
func (a artifacts) Store(ctx context.Context, tenant id.TenantID, artifact id.ArtifactID, content []byte) (sum [32]byte, err error) {
	key := store.ArtifactFile(tenant, artifact)
	if _, sum, err = a.blobs.Put(ctx, key, bytes.NewReader(content), int64(len(content))); err != nil {
		return sum, errors.Join(problem.Unavailable("Storage is not available now.", time.Second), err)
	}
	a.blobs.Settle(key, false)
	return sum, nil
}

// files joins the directory of files with the rows that name them.
type files struct {
	blobs *blob.Store
	rows  *store.Files
}

func (f files) Sweep(ctx context.Context) (int, error) { return f.blobs.Sweep(ctx, f.rows) }
func (f files) Walk(ctx context.Context) (int, error)  { return f.blobs.Walk(ctx, f.rows) }

// openFiles opens the store of files at a location. Uploads to a bucket pass through a directory
// of the data directory.
func openFiles(ctx context.Context, c *Config, at blob.Location, owner string) (*blob.Store, error) {
	return blob.Open(ctx, at, filepath.Join(c.DataDir, "uploads"), owner)
}

// filesThere returns an error if the database names files and the store is empty and new: its directory is not
// mounted, or SVC_FILES_URL or SVC_DATA_DIR names another place. A node that served from it would refuse the nodes
// that have the files, and lose uploads when the right place comes back. blobs is nil if there is no directory.
func filesThere(ctx context.Context, c *Config, blobs *blob.Store, pool *pg.Pool) error {
	if blobs != nil {
		if unused, err := blobs.Unused(ctx); err != nil || !unused {
			return err
		}
	}
	if named, err := store.NewFiles(pool).Named(ctx); err != nil || !named {
		return err
	}
	return fmt.Errorf("the store of files is empty, and the database names files: %s: mount it, or set SVC_FILES_URL or SVC_DATA_DIR to where the files are; if they are lost for good, run svc files accept-loss", c.Files)
}

// checkStored is filesThere for a command that makes no directory.
func checkStored(ctx context.Context, c *Config, pool *pg.Pool) error {
	if at := c.Files.Dir; at != "" {
		if _, err := os.Stat(at); errors.Is(err, os.ErrNotExist) {
			return filesThere(ctx, c, nil, pool)
		}
	}
	s, err := openFiles(ctx, c, c.Files, "doctor")
	if err != nil {
		return err
	}
	return errors.Join(filesThere(ctx, c, s, pool), s.Close())
}

// acceptLoss gives an empty store its name, so that nodes start with it.
func acceptLoss(ctx context.Context, c *Config) error {
	s, err := openFiles(ctx, c, c.Files, "accept-loss")
	if err != nil {
		return err
	}
	_, err = s.ID(ctx)
	return errors.Join(err, s.Close())
}

// checkFiles names the store of files and checks that it can be written, read and listed. It does
// not create a directory.
func checkFiles(ctx context.Context, c *Config) (string, error) {
	if at := c.Files.Dir; at != "" {
		if _, err := os.Stat(at); errors.Is(err, os.ErrNotExist) {
			return "no " + at + " yet: the first start makes it", nil
		}
	}
	s, err := openFiles(ctx, c, c.Files, "doctor")
	if err != nil {
		return "", err
	}
	if c.Files.Dir != "" { // a bucket was checked when it was opened
		err = s.Check(ctx)
	}
	return c.Files.String(), errors.Join(err, s.Close())
}

func filesCommand() *cobra.Command {
	cmd := cli.Group("files", "manage the store of files")
	move := &cobra.Command{Use: "move", Short: "copy all files into another store, while the service runs", Args: cobra.NoArgs,
		Long: `Copies the files of a store into another one and checks each against the checksum
in the database. Nothing is removed from the old store. Files that are there
already are not copied again, so an interrupted command is run again.

  1. Run it while the service runs. It may take long.
  2. Stop all servers and run it again: it copies what came in between.
  3. Start them with the new store as SVC_FILES_URL.

Credentials of a bucket come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
AWS_SESSION_TOKEN, or from a URL: s3://key:secret@bucket. Other users of the
machine can read a command line.

The exit code is 0 if the new store has every file of the old one, 1 if files
are damaged or a store failed, 2 if the command was wrong.`}
	from := move.Flags().String("from", "", "the old store (default: that of SVC_FILES_URL, or blobs in SVC_DATA_DIR)")
	to := move.Flags().String("to", "", "the new store: file:///dir, or s3://bucket/prefix?endpoint=https://host&region=name")
	verify := move.Flags().Bool("verify", false, "read also files that are there already, and replace damaged ones")
	cli.Required(move, "to")
	move.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := loadConfig(cmd)
		if err != nil {
			return err
		}
		old, target := c.Files, blob.Location{}
		if *from != "" {
			if old, err = c.location("--from", *from); err != nil {
				return err
			}
		}
		if target, err = c.location("--to", *to); err != nil {
			return err
		}
		return cli.Does(func(cmd *cobra.Command, _ []string) error { return moveFiles(cmd, c, old, target, *verify) })(cmd, nil)
	}
	cmd.AddCommand(move, acceptLossCommand())
	return cmd
}

func acceptLossCommand() *cobra.Command {
	return &cobra.Command{Use: "accept-loss", Short: "let servers start with an empty store, where the files of the database are lost", Args: cobra.NoArgs,
		Long: `A server refuses an empty store of files while its database names files: usually
the place is not mounted, or SVC_FILES_URL or SVC_DATA_DIR is wrong. This command
marks the store of these settings as the right one. The rows of the lost files
stay; their downloads fail.`,
		RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if err := acceptLoss(cmd.Context(), c); err != nil {
				return err
			}
			if cli.WantsJSON(cmd) {
				return cli.PrintJSON(cmd.OutOrStdout(), map[string]string{"files": c.Files.String()})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "servers may start with %s\n", c.Files)
			return err
		})}
}

// moved is what svc files move prints.
type moved struct {
	Copied int64        `json:"copied"`
	Bytes  int64        `json:"bytes"`
	There  int64        `json:"there"`
	Failed []failedFile `json:"failed"`
}

type failedFile struct {
	Key   string `json:"key"`
	Error string `json:"error"`
}

// progressEvery is the time between two lines of progress.
const progressEvery = 2 * time.Second

func moveFiles(cmd *cobra.Command, c *Config, old, target blob.Location, verify bool) error {
	if old.Nested(target) {
		return cli.WrongUse(fmt.Errorf("--to: %s and %s lie inside each other: choose a place beside the old store", target, old))
	}
	return withDatabase(cmd.Context(), c, managing, func(ctx context.Context, _ string, pool *pg.Pool) (err error) {
		if old.Dir != "" {
			if _, err := os.Stat(old.Dir); err != nil {
				return fmt.Errorf("--from: %w", err)
			}
		}
		owner := "move-" + id.NewAnywhere().String()
		from, err := openFiles(ctx, c, old, owner)
		if err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		defer func() { err = errors.Join(err, from.Close()) }()
		to, err := openFiles(ctx, c, target, owner)
		if err != nil {
			return fmt.Errorf("--to: %w", err)
		}
		defer func() { err = errors.Join(err, to.Close()) }()
		a, errFrom := from.ID(ctx)
		b, errTo := to.ID(ctx)
		if err := errors.Join(errFrom, errTo); err != nil {
			return err
		}
		if a == b {
			return cli.WrongUse(errors.New("--to: is the store that the files are in"))
		}
		out := moved{Failed: []failedFile{}}
		copying := &blob.Copying{From: from, To: to, Verify: verify, Sums: store.NewFiles(pool).Sums,
			Failed: func(key string, err error) { out.Failed = append(out.Failed, failedFile{key, err.Error()}) }}
		done := make(chan error, 1)
		go func() { done <- copying.Run(ctx) }()
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for running := true; running; {
			select {
			case err = <-done:
				running = false
			case <-tick.C:
				fmt.Fprintf(cmd.ErrOrStderr(), "copied %s, %d were there\n", amount(copying), copying.There.Load())
			}
		}
		out.Copied, out.Bytes, out.There = copying.Copied.Load(), copying.Bytes.Load(), copying.There.Load()
		if cli.WantsJSON(cmd) {
			err = errors.Join(err, cli.PrintJSON(cmd.OutOrStdout(), out))
		} else {
			for _, f := range out.Failed {
				fmt.Fprintln(cmd.OutOrStdout(), f.Error)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "copied %s from %s to %s, %d were there\n", amount(copying), old, target, out.There)
		}
		if err == nil && len(out.Failed) > 0 {
			err = fmt.Errorf("%s could not be copied", plural(len(out.Failed), "file"))
		}
		return err
	})
}

func amount(c *blob.Copying) string {
	return fmt.Sprintf("%s (%.1f MiB)", plural(int(c.Copied.Load()), "file"), float64(c.Bytes.Load())/(1<<20))
}
