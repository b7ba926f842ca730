module github.com/countd/countd/bench/rows

go 1.26
