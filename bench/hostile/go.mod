module github.com/countd/countd/bench/hostile

go 1.26
