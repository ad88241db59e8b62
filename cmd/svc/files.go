package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/persistence/blob"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
)

// lookAt opens the store of files for a command that stores nothing. It makes no directory, and returns nil if that of
// the store is not there.
func lookAt(ctx context.Context, c *Config, owner string) (*blob.Store, error) {
	if at := c.Files.Dir; at != "" {
		if _, err := os.Stat(at); errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
	}
	return blob.Open(ctx, c.Files, "", owner)
}

// checkStored is filesThere for a command that makes no directory.
func checkStored(ctx context.Context, c *Config, pool *pg.Pool) error {
	s, err := lookAt(ctx, c, "doctor")
	if err != nil {
		return err
	}
	err = filesThere(ctx, c.Files, s, pool)
	if s != nil {
		err = errors.Join(err, s.Close())
	}
	return err
}

// acceptLoss gives an empty store its name, so that nodes start with it. It reports whether there was a loss to accept.
func acceptLoss(ctx context.Context, c *Config, pool *pg.Pool) (bool, error) {
	if err := checkStored(ctx, c, pool); !errors.As(err, new(errEmptyStore)) {
		return false, err
	}
	s, err := blob.Open(ctx, c.Files, "", "accept-loss")
	if err != nil {
		return false, err
	}
	_, err = s.ID(ctx)
	return true, errors.Join(err, s.Close())
}

// checkFiles names the store of files and checks that it can be written, read and listed. It does
// not create a directory.
func checkFiles(ctx context.Context, c *Config) (string, error) {
	s, err := lookAt(ctx, c, "doctor")
	if err != nil {
		return "", err
	}
	if s == nil {
		return "no " + c.Files.Dir + " yet: the first start makes it", nil
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
  4. Put the old store out of reach, for example rename its directory: servers
     started with the old settings would accept it and lack all newer files.

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
	cmd.AddCommand(move, checkFilesCommand(), acceptLossCommand())
	return cmd
}

func acceptLossCommand() *cobra.Command {
	return &cobra.Command{Use: "accept-loss", Short: "let servers start with an empty store, where the files of the database are lost", Args: cobra.NoArgs,
		Long: `A server refuses an empty store of files while its database names files: usually
the place is not mounted, or SVC_FILES_URL or SVC_DATA_DIR is wrong. This command
marks the store of these settings as the right one. The rows of the lost files
stay; their downloads answer 404. It changes nothing where a server would start.`,
		RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
			return onDatabase(cmd, managing, func(ctx context.Context, c *Config, pool *pg.Pool) error {
				accepted, err := acceptLoss(ctx, c, pool)
				if err != nil {
					return err
				}
				if cli.WantsJSON(cmd) {
					return cli.PrintJSON(cmd.OutOrStdout(), map[string]any{"files": c.Files.String(), "accepted": accepted})
				}
				text := "nothing to accept: servers start with %s as it is\n"
				if accepted {
					text = "servers may start with %s\n"
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), text, c.Files)
				return err
			})
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
		return cli.WrongUse(fmt.Errorf("--to: %s overlaps the old store %s: choose a directory outside it", target, old))
	}
	return withDatabase(cmd.Context(), c, managing, func(ctx context.Context, _ string, pool *pg.Pool) (err error) {
		if old.Dir != "" {
			if _, err := os.Stat(old.Dir); err != nil {
				return fmt.Errorf("--from: %w", err)
			}
		}
		owner := "move-" + id.NewAnywhere().String()
		from, err := blob.Open(ctx, old, "", owner)
		if err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		defer func() { err = errors.Join(err, from.Close()) }()
		if err := filesThere(ctx, old, from, pool); err != nil { // a copy of nothing would look complete
			return fmt.Errorf("--from: %w", err)
		}
		// The user of this command may be another one than the server's: it must not own the server's directory of uploads.
		spool := ""
		if target.Dir == "" {
			if spool, err = os.MkdirTemp(inDirectory(c.DataDir), "svc-files-move-"); err != nil {
				return fmt.Errorf("make a directory for files on their way to the bucket: %w", err)
			}
			defer func() { err = errors.Join(err, os.RemoveAll(spool)) }()
		}
		to, err := openFiles(ctx, target, spool, owner)
		if err != nil {
			return fmt.Errorf("--to: %w", err)
		}
		defer func() { err = errors.Join(err, to.Close()) }()
		a, errFrom := from.ID(ctx)
		b, errTo := to.Name(ctx) // it gets its name when it is complete
		if err := errors.Join(errFrom, errTo); err != nil {
			return err
		}
		if a == b {
			return cli.WrongUse(errors.New("--to: is the store that the files are in"))
		}
		out := moved{Failed: []failedFile{}}
		copying := &blob.Copying{From: from, To: to, Verify: verify, Sums: store.NewFiles(pool).Sums,
			Failed: func(key string, err error) { out.Failed = append(out.Failed, failedFile{key, err.Error()}) }}
		err = progress(cmd, func() error { return copying.Run(ctx) }, func() string {
			return fmt.Sprintf("copied %s, %d were there", amount(copying), copying.There.Load())
		})
		if err == nil && len(out.Failed) == 0 {
			_, err = to.ID(ctx)
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

// inDirectory returns the directory if it is there; otherwise "", which is the system's one for temporary files.
func inDirectory(dir string) string {
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return dir
}

// progress prints how far a long work is until it ends.
func progress(cmd *cobra.Command, work func() error, far func() string) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			fmt.Fprintln(cmd.ErrOrStderr(), far())
		}
	}
}

func checkFilesCommand() *cobra.Command {
	return &cobra.Command{Use: "check", Short: "look for every file that the database names, while the service runs", Args: cobra.NoArgs,
		Long: `Looks for every attachment, document and file of a run that the database names,
and compares its size, in a bucket also its checksum. No content is read and
nothing is changed. A bucket gets one request for each file, 8 at a time. Run it
after a restore and after svc files move.

The exit code is 0 if every file is there, 1 if files are missing or damaged or
the store failed, 2 if the command was wrong.`,
		RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
			return onDatabase(cmd, managing, func(ctx context.Context, c *Config, pool *pg.Pool) error { return lookForFiles(ctx, cmd, c, pool) })
		})}
}

// looked is what svc files check prints.
type looked struct {
	Checked int64        `json:"checked"`
	Failed  []failedFile `json:"failed"`
}

// looks is how many files are looked for at the same time.
const looks = 8

func lookForFiles(ctx context.Context, cmd *cobra.Command, c *Config, pool *pg.Pool) (err error) {
	if err := checkStored(ctx, c, pool); err != nil {
		return err
	}
	s, err := lookAt(ctx, c, "check")
	if err != nil {
		return err
	}
	if s != nil {
		defer func() { err = errors.Join(err, s.Close()) }()
	}
	out, rows, checked := looked{Failed: []failedFile{}}, store.NewFiles(pool), atomic.Int64{}
	err = progress(cmd, func() error {
		if s == nil { // no directory, and the database names no file
			return nil
		}
		return rows.Each(ctx, func(page []store.StoredFile) error {
			failed, err := lookFor(ctx, s, rows, page)
			checked.Add(int64(len(page)))
			out.Failed = append(out.Failed, failed...)
			return err
		})
	}, func() string { return "checked " + plural(int(checked.Load()), "file") })
	out.Checked = checked.Load()
	if cli.WantsJSON(cmd) {
		err = errors.Join(err, cli.PrintJSON(cmd.OutOrStdout(), out))
	} else {
		for _, f := range out.Failed {
			fmt.Fprintln(cmd.OutOrStdout(), f.Error)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "checked %s in %s\n", plural(int(out.Checked), "file"), c.Files)
	}
	if err == nil && len(out.Failed) > 0 {
		err = fmt.Errorf("missing or damaged: %s that the database names", plural(len(out.Failed), "file"))
	}
	return err
}

// lookFor returns those files that are missing or damaged, and that the database still names.
func lookFor(ctx context.Context, s *blob.Store, rows *store.Files, page []store.StoredFile) ([]failedFile, error) {
	wrong := make([]error, len(page))
	var busy sync.WaitGroup
	free := make(chan struct{}, looks)
	for i, f := range page {
		free <- struct{}{}
		busy.Go(func() {
			defer func() { <-free }()
			wrong[i] = s.Matches(ctx, f.Key, f.Size, f.Sum)
		})
	}
	busy.Wait()
	var keys []string
	for i, err := range wrong {
		switch {
		case errors.Is(err, blob.ErrNotFound), errors.Is(err, blob.ErrCorrupt):
			keys = append(keys, page[i].Key)
		case err != nil:
			return nil, err
		}
	}
	named, err := rows.Sums(ctx, keys)
	if err != nil {
		return nil, err
	}
	var failed []failedFile
	for i, f := range page {
		if _, ok := named[f.Key]; ok && wrong[i] != nil {
			failed = append(failed, failedFile{f.Key, wrong[i].Error()})
		}
	}
	return failed, nil
}

func amount(c *blob.Copying) string {
	return fmt.Sprintf("%s (%.1f MiB)", plural(int(c.Copied.Load()), "file"), float64(c.Bytes.Load())/(1<<20))
}
