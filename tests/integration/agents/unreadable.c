// A process whose memory nobody can read in time: it holds its lock in a page fault that its own
// FUSE server never answers. In its folder it makes the folder "m"; argument: seconds until its
// first process leaves. Writes the process to "pid".
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/prctl.h>
#include <linux/fuse.h>
static void put(const char*p,const char*s){int f=open(p,O_WRONLY);if(f<0||write(f,s,strlen(s))<0)perror(p);close(f);}
static void serve(int fd){
  static char buf[1<<20]; int reads=0;
  for(;;){ ssize_t n=read(fd,buf,sizeof buf); if(n<=0){ if(errno==EINTR)continue; _exit(0);} 
    struct fuse_in_header*h=(void*)buf; char out[512]; memset(out,0,sizeof out);
    struct fuse_out_header*o=(void*)out; o->unique=h->unique; o->len=sizeof*o; void*b=out+sizeof*o;
    struct fuse_attr a; memset(&a,0,sizeof a); a.nlink=1; a.ino=h->nodeid; a.size=1<<20; a.mode=h->nodeid==1?S_IFDIR|0755:S_IFREG|0644; a.blksize=4096;
    switch(h->opcode){
     case FUSE_INIT:{struct fuse_init_out*i=b; i->major=7;i->minor=31;i->max_write=4096;i->max_background=1; o->len+=sizeof*i;break;}
     case FUSE_LOOKUP:{struct fuse_entry_out*e=b; e->nodeid=2; a.ino=2;a.mode=S_IFREG|0644; e->attr=a; e->entry_valid=e->attr_valid=1000; o->len+=sizeof*e;break;}
     case FUSE_GETATTR:{struct fuse_attr_out*e=b; e->attr=a;e->attr_valid=1000;o->len+=sizeof*e;break;}
     case FUSE_OPEN: {struct fuse_open_out*e=b; o->len+=sizeof*e;break;}
     case FUSE_READ: fprintf(stderr,"read %d\n",++reads); if(reads<2){o->error=-EIO;break;} continue;
     case FUSE_FORGET: case FUSE_INTERRUPT: continue;
     default: o->error=-ENOSYS; }
    write(fd,out,o->len); }
}
static void*touch(void*p){ volatile char c=*(volatile char*)p; (void)c; return 0;}
static void*lockit(void*p){ sleep(2); fprintf(stderr,"writer\n"); mmap(0,4096,PROT_READ,MAP_PRIVATE|MAP_ANONYMOUS,-1,0); fprintf(stderr,"writer through\n"); return 0;}
int main(int c,char**v){
  char t[64]; int u=getuid(),g=getgid(); 
  if(unshare(CLONE_NEWUSER|CLONE_NEWNS)){perror("unshare");return 1;}
  put("/proc/self/setgroups","deny"); sprintf(t,"0 %d 1",u); put("/proc/self/uid_map",t); sprintf(t,"0 %d 1",g); put("/proc/self/gid_map",t);
  int fd=open("/dev/fuse",O_RDWR); if(fd<0){perror("/dev/fuse");return 1;}
  mkdir("m",0755); sprintf(t,"fd=%d,rootmode=40000,user_id=0,group_id=0",fd);
  if(mount("x","m","fuse",MS_NOSUID|MS_NODEV,t)){perror("mount");return 1;}
  if(fork()==0) serve(fd);
  if(fork()==0){ // orphan, goes to the supervisor
    if(fork()) _exit(0);
    setsid();
    int f=open("m/f",O_RDONLY); if(f<0){perror("m/f");_exit(1);} 
    char*p=mmap(0,1<<20,PROT_READ,MAP_SHARED,f,0); madvise(p,1<<20,MADV_RANDOM);
    pthread_t a,b; pthread_create(&b,0,lockit,0); pthread_create(&a,0,touch,p); 
    FILE*w=fopen("pid.new","w"); fprintf(w,"%d ",getpid()); fclose(w); sleep(3); rename("pid.new","pid"); for(;;)pause();
  }
  sleep(c>1?atoi(v[1]):3600); fprintf(stderr,"main leaves\n"); return 0; }
