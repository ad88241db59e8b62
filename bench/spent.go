package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// spent is the CPU time each party has used so far.
type spent struct{ clients, nodes, postgres, redis time.Duration }

// spent reads what the kernel says of this process, of the nodes, of Postgres
// with its backends, and of Redis.
func (p *peers) spent() (s spent, err error) {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return s, err
	}
	s.clients = time.Duration(own.Utime.Nano() + own.Stime.Nano())
	for _, n := range p.nodes {
		u, err := n.usage()
		if err != nil {
			return s, err
		}
		s.nodes += u.cpu
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return s, err
	}
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parent, _ := strconv.Atoi(f[1])
		utime, _ := strconv.Atoi(f[11])
		stime, _ := strconv.Atoi(f[12])
		used := time.Duration(utime+stime) * (time.Second / 100)
		switch p.first.pg.Process.Pid {
		case pid, parent:
			s.postgres += used
		}
		if pid == p.redis.Process.Pid {
			s.redis += used
		}
	}
	return s, nil
}

// since tells what n runs cost from an earlier reading on, a run.
func (s spent) since(before spent, n float64) string {
	per := func(now, then time.Duration) time.Duration {
		return time.Duration(float64(now-then) / n).Round(time.Microsecond)
	}
	return fmt.Sprintf("CPU a run: clients %v, nodes %v, Postgres %v, Redis %v",
		per(s.clients, before.clients), per(s.nodes, before.nodes), per(s.postgres, before.postgres), per(s.redis, before.redis))
}
