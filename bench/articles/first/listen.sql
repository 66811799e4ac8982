-- First article, "Waking workers: polling or LISTEN/NOTIFY"
LISTEN jobs;
