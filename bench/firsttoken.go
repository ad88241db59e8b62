package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func (b *bed) firstToken(ctx context.Context) (time.Duration, error) {
	addr, err := freePort()
	if err != nil {
		return 0, err
	}
	dev := exec.CommandContext(ctx, b.svcFile, "dev", "--json")
	dev.Env = append(os.Environ(), "SVC_ADDR="+addr, "SVC_DATA_DIR="+filepath.Join(b.dir, "dev"), "SVC_LOG_LEVEL=warn")
	dev.Stderr, dev.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := dev.StdoutPipe()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := dev.Start(); err != nil {
		return 0, err
	}
	defer func() { dev.Process.Signal(syscall.SIGTERM); dev.Wait() }()
	d, err := readDev(bufio.NewReader(out))
	if err != nil {
		return 0, err
	}
	b.base, b.tenant, b.key, b.agent = d.URL, d.TenantID, d.APIKey, d.AgentID
	thread, err := b.thread()
	if err != nil {
		return 0, err
	}
	run, err := b.post(thread, "hello")
	if err != nil {
		return 0, err
	}
	err = b.follow(run, "", func(l []byte) bool { return !strings.HasPrefix(string(l), "event: llm.delta") })
	return time.Since(start), err
}
