// Command rows makes the rows for bench/cold.sh and bench/sealed.sh, and measures a disk.
//
//	rows gen COUNTS.csv.gz N RATE END   a CSV of N posts with counts drawn from real ones,
//	                                    RATE of them a second, the last at END (unix time)
//	rows redis < rows.csv               these posts as commands for redis-cli --pipe, a hash each
//	rows disk FILE N                    the times of N reads of 4 KiB anywhere in FILE that bypass
//	                                    the system's cache
package main

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// weiboEpoch is the unix time of id 0. An id consists of the post's time in seconds since
// weiboEpoch, and 22 more bits.
const weiboEpoch = 515483463

var columns = []string{"repost", "comment", "like", "view"}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rows:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 5 && args[0] == "gen":
		return generate(args[1], args[2:])
	case len(args) == 1 && args[0] == "redis":
		return commands(os.Stdin)
	case len(args) == 3 && args[0] == "disk":
		return disk(args[1], args[2])
	}
	return errors.New("want gen COUNTS N RATE END, redis, or disk FILE N")
}

func generate(path string, args []string) error {
	var numbers [3]uint64
	for i, arg := range args {
		n, err := strconv.ParseUint(arg, 10, 32)
		if err != nil || n == 0 {
			return fmt.Errorf("%q is not a number above 0", arg)
		}
		numbers[i] = n
	}
	n, rate, end := numbers[0], numbers[1], numbers[2]
	counts, err := realCounts(path)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	fmt.Fprintf(out, "id,%s\n", strings.Join(columns, ","))
	r := rand.New(rand.NewPCG(1, 2))
	gap := float64(uint64(1)<<22) / float64(rate)
	id := (end-weiboEpoch)<<22 - uint64(float64(n)*(gap+1))
	line := []byte{}
	for range n {
		id += 1 + uint64(r.ExpFloat64()*gap)
		line = strconv.AppendUint(line[:0], id, 10)
		some := int64(0)
		for _, c := range counts[r.IntN(len(counts))] {
			some |= c
			line = strconv.AppendInt(append(line, ','), c, 10)
		}
		view := int64(0)
		if some == 0 {
			view = 1 // a row with no count but zeros would not exist
		}
		line = append(strconv.AppendInt(append(line, ','), view, 10), '\n')
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
	return out.Flush()
}

// realCounts reads the reposts, comments and likes of posts from a gzipped CSV file.
func realCounts(path string) ([][3]int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	lines, err := csv.NewReader(unzipped).ReadAll()
	if err != nil {
		return nil, err
	}
	counts := make([][3]int64, len(lines)-1)
	for i, line := range lines[1:] {
		for c := range counts[i] {
			if counts[i][c], err = strconv.ParseInt(line[2+c], 10, 64); err != nil {
				return nil, err
			}
		}
	}
	return counts, nil
}

func commands(in io.Reader) error {
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	lines := bufio.NewScanner(in)
	lines.Scan() // the header
	for lines.Scan() {
		cells := strings.Split(lines.Text(), ",")
		words := []string{"HSET", "post:" + cells[0]}
		for i, name := range columns {
			if cells[i+1] != "0" {
				words = append(words, name, cells[i+1])
			}
		}
		fmt.Fprintf(out, "*%d\r\n", len(words))
		for _, w := range words {
			fmt.Fprintf(out, "$%d\r\n%s\r\n", len(w), w)
		}
	}
	return errors.Join(lines.Err(), out.Flush())
}

// disk prints "p50_us p99_us" of reads that bypass the system's cache.
func disk(path, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil || n <= 0 {
		return fmt.Errorf("%q is not a number above 0", count)
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	const block = 4096
	blocks := info.Size() / block
	if blocks == 0 {
		return errors.New("the file is too small")
	}
	buffer := make([]byte, 2*block) // O_DIRECT wants an aligned buffer
	buffer = buffer[block-int(uintptr(unsafe.Pointer(&buffer[0]))%block):][:block]
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		if _, err := file.ReadAt(buffer, rand.Int64N(blocks)*block); err != nil {
			return err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	fmt.Printf("%.0f %.0f\n", us(took[n/2]), us(took[n*99/100]))
	return nil
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
